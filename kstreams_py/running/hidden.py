"""Finds inputs whose newest records are hidden by open transactions, and the producers of these transactions.

A reader of committed records stops at the last stable offset. If a producer died in a transaction, the reader has
nothing to read, its lag is 0, and it looks healthy.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kstreams_py.kafka.contracts import Cluster
from kstreams_py.kafka.transactions import command
from kstreams_py.log_fields import repeated
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.running.http.remedies import HIDDEN_SECONDS as HIDDEN_TOO_LONG

logger = logging.getLogger(__name__)

HIDDEN_SECONDS: Final = 10.0
"""Seconds that a last stable offset must stay below the end before it counts: other producers have transactions too."""

ASKED_SECONDS: Final = 30.0
"""Seconds between two requests for the open transactions of the same partition."""

PAUSE_SECONDS: Final = 5.0
"""Seconds between two requests of one slot: each request creates a client."""


class HiddenReport(NamedTuple):
    """Hidden records: for how many seconds, which ones and by whom as text, and in how many partitions."""

    seconds: float = 0.0
    text: str = ""
    partitions: int = 0


@dataclass(slots=True)
class _Held:
    """A last stable offset below the high watermark, since when (monotonic seconds), and whether that was logged."""

    stable: int
    since: float
    is_logged: bool = False


class HiddenRecords:
    """The hidden records of one slot's inputs. The lag thread calls `look`; another thread calls `ask`."""

    def __init__(self, cluster: Cluster, wall: Callable[[], float] = time.time) -> None:
        """`wall` returns seconds since 1970."""
        self._cluster = cluster
        self._wall = wall
        self._held: dict[TopicPartition, _Held] = {}
        self._found: dict[TopicPartition, HiddenReport] = {}
        self._asked_at: dict[TopicPartition, float] = {}
        """The time of the last request for each partition: successive transactions cause no more requests."""
        self._answers: dict[TopicPartition, tuple[int, str]] = {}
        """The newest answer about each partition: the stable offset of the request, and who holds it."""

    def look(self, stable: Positions, highs: Iterable[Positions], now: float) -> None:
        """Takes the last stable offsets, and the high watermarks of each worker, which may be older.

        Both only grow: a stable offset below an old high watermark is also below the newest. Makes no request.

        - `now`: monotonic seconds.
        """
        above = {tp for each in highs for tp, high in each.items() if tp in stable and high > stable[tp]}
        held, found = {}, {}
        for tp in sorted(above):
            before = self._held.get(tp)
            held[tp] = each = before if before and before.stable == stable[tp] else _Held(stable[tp], now)
            if (seconds := now - each.since) >= HIDDEN_SECONDS:
                found[tp] = HiddenReport(seconds, f"{tp} is hidden by {self._by(tp, each.stable)}", 1)
                self._log(each, found[tp])
        self._held, self._found = held, found

    def _by(self, tp: TopicPartition, stable: int) -> str:
        asked_for, by = self._answers.get(tp, (None, ""))
        return by if asked_for == stable else f"a transaction from offset {stable}"

    def _log(self, held: _Held, hidden: HiddenReport) -> None:
        """Logs once that the hidden records have become a bad finding."""
        if hidden.seconds > HIDDEN_TOO_LONG and not held.is_logged:
            held.is_logged = True
            logger.warning(
                "readers of committed records have seen nothing new for %.0f s: %s",
                hidden.seconds,
                hidden.text,
                extra=repeated("inputs that a transaction hides", hidden.text),
            )

    def ask(self, now: float) -> None:
        """Asks for the open transactions of one hidden partition, if a request is due. This may take long.

        Chooses the partition that was asked about least recently, then the one that has been hidden longest.
        """
        held, never = self._held, -math.inf
        if now - max(self._asked_at.values(), default=never) < PAUSE_SECONDS:
            return
        self._asked_at = {tp: at for tp, at in self._asked_at.items() if now - at < ASKED_SECONDS or tp in held}
        self._answers = {tp: answer for tp, answer in self._answers.items() if tp in held}
        due = [
            (self._asked_at.get(tp, never), each.since, tp, each.stable)
            for tp, each in held.items()
            if now - each.since >= HIDDEN_SECONDS and now - self._asked_at.get(tp, never) >= ASKED_SECONDS
        ]
        if due:
            _, _, tp, stable = min(due)
            self._asked_at[tp] = now
            self._answers[tp] = stable, self._look_up(tp, stable)

    def _look_up(self, tp: TopicPartition, stable: int) -> str:
        try:
            first = min(self._cluster.open_transactions(tp), key=lambda each: each.start, default=None)
        except Exception as error:  # whatever a client raises: the thread that asks must go on
            return f"a transaction from offset {stable}, which cannot be looked up: {error}"
        ended = f"a transaction from offset {stable}, which has just ended"
        if first is None:
            return ended
        found = first.describe(self._wall())
        return f"{found}: `{command('abort', tp, first.start)}`" if first.hangs else found

    def of(self, partitions: Iterable[TopicPartition]) -> HiddenReport:
        """Returns what is hidden in these partitions: the longest time, its text, and the number of partitions."""
        of_all = self._found
        found = [of_all[tp] for tp in partitions if tp in of_all]
        if not found:
            return HiddenReport()
        longest = max(found)
        more = f" (and of {len(found) - 1} more partitions)" if len(found) > 1 else ""
        return HiddenReport(round(longest.seconds, 1), longest.text + more, len(found))
