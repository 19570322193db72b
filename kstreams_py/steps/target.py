"""The target of a worker's rows: its connection, and how the worker reacts to its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from kstreams_py.errors import Abortable, Refused, RowRefused, SinkAway, SinkUnavailable, StaleWriter
from kstreams_py.graph.sink import Row, Sink, SinkConnection
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.outputs import OUTPUT_BYTES

ROWS_MAX: Final = 50_000
"""The maximum number of rows in one write; a single step may have more."""

ROWS_FIRST: Final = 1_000
"""Rows in the first write, before the speed of the target is known."""

WRITE_SECONDS: Final = 1.0
"""Seconds that a write may take: the client does not hear from the group meanwhile, and a stop waits for the write."""

T = TypeVar("T")


def sink_error(sink: Sink, error: SinkUnavailable) -> SinkAway | SinkUnavailable:
    """Returns the error of a target that cannot be used: SinkAway if a worker waits until the target is back."""
    return SinkAway(f"{sink} is away: {error}") if error.may_return else error


class Target:
    """Holds the rows of one worker until its commit, then stores them. It connects at its first use.

    No transaction is open while it writes: however long a write takes, the broker aborts nothing.

    Raises, as ClientErrors: SinkAway while the target is away, Abortable if another writer has moved the offsets in it,
    Refused if it never takes one of the rows. Raises SinkUnavailable if the target does not come back by itself,
    SettingsError if its table has other columns.
    """

    def __init__(
        self,
        sink: Sink,
        consumer: str,
        topic_ids: Mapping[str, str],
        open_sink: Callable[[Sink, str], SinkConnection],
        clock: Callable[[], float],
    ) -> None:
        """Makes no request.

        - `consumer`: the processor's full name, `graph.processor`, which owns the stored offsets.
        - `topic_ids`: the ids of its input topics.
        - `open_sink`: connects to the target of a sink, for a consumer.
        - `clock`: returns seconds that never decrease.
        """
        self.rows_max = ROWS_FIRST
        """How many rows to write together, so that a write takes WRITE_SECONDS."""
        self._sink = sink
        self._consumer = consumer
        self._topic_ids = topic_ids
        self._open = open_sink
        self._clock = clock
        self._connection: SinkConnection | None = None
        self._rows: list[Row] = []
        self._bytes = 0

    def open(self) -> None:
        """Connects, unless it is connected."""
        self._call(lambda _: None)

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        """Reads the next offsets that the target has for these partitions."""
        named = {self._named(tp): tp for tp in partitions}
        found = self._call(lambda connection: connection.positions(named.keys()))
        return {named[tp]: at for tp, at in found.items()}

    def hold(self, rows: Sequence[Row], size: int) -> None:
        """Takes rows of `size` bytes, for the next `store`."""
        self._rows += rows
        self._bytes += size

    @property
    def has_rows(self) -> bool:
        """Whether rows wait to be stored."""
        return bool(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether the rows are enough for a write."""
        return len(self._rows) >= self.rows_max or self._bytes >= OUTPUT_BYTES

    def forget(self) -> None:
        """Forgets the rows: they are stored, or their steps are run again."""
        self._rows, self._bytes = [], 0

    def store(self, positions: Positions, expected: Positions) -> None:
        """Stores the rows and these next offsets in one transaction of the target; keeps the rows if that fails.

        `expected`: the offsets that the target must still have.
        """
        rows = self._rows
        after, before = ({self._named(tp): at for tp, at in each.items()} for each in (positions, expected))
        began = self._clock()
        self._call(lambda connection: connection.write(rows, after, before))
        if rows:
            self._pace(len(rows), self._clock() - began)
        self.forget()

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _pace(self, rows: int, seconds: float) -> None:
        """Adapts `rows_max` to writes of WRITE_SECONDS: it grows at most fourfold at once, and shrinks immediately."""
        wanted = int(WRITE_SECONDS * rows / seconds) if seconds > 0 else ROWS_MAX
        self.rows_max = max(1, min(wanted, self.rows_max * 4, ROWS_MAX))

    def _named(self, tp: TopicPartition) -> TopicPartition:
        """Returns the partition with the id added to its topic's name: a target keeps offsets of deleted topics."""
        topic_id = self._topic_ids.get(tp.topic)
        return TopicPartition(f"{tp.topic}@{topic_id}", tp.partition) if topic_id else tp

    def _call(self, call: Callable[[SinkConnection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self._open(self._sink, self._consumer)
            return call(self._connection)
        except StaleWriter as error:
            # also raised after an unanswered write that did store: the target then has newer offsets than expected
            raise Abortable(f"{self._sink}: {error}") from error
        except RowRefused as error:
            raise Refused(error) from error
        except SinkUnavailable as error:
            raise sink_error(self._sink, error) from error
