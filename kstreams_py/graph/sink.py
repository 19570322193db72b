"""The protocol of a sink: a table elsewhere that stores rows, each once.

There are two kinds of evidence that a row is stored. With `HASH` the delivery hash of a row's step is stored beside the
row; if a row comes again, the stored row stays. With `OFFSETS` the next offsets of the inputs are stored beside the
rows. A worker continues from these, and the group's committed offsets only follow them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kstreams_py.records import Positions, TopicPartition


class Evidence(StrEnum):
    """The evidence that a sink stores in the transaction of the rows, so that each row is stored once."""

    HASH = "hash"
    """The delivery hash of each row's step: a row whose hash is stored is left unchanged."""
    OFFSETS = "offsets"
    """The next offsets of the inputs: a writer that expects other offsets is refused."""


class Row(NamedTuple):
    """A row of the table.

    - `delivery_hash`: 16 bytes, unique to the row, and the same at every attempt. The first row of a step has the
      step's hash, as its dead letter would; each other row has a BLAKE2b hash of the step's hash and the row's number.
    - `values`: one for each column of the sink.
    """

    delivery_hash: bytes
    values: tuple[Any, ...]


class SinkConnection(Protocol):
    """One thread's connection to a target. After an exception it stays usable: the next call connects again.

    The topic of a partition has the broker's topic id in its name (`orders@<id>`), so that a topic that is created
    again under the name of a deleted one does not take over its offsets.

    Every method raises SinkUnavailable if the target cannot be used now.
    """

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        """Reads the next offsets of these partitions that the target stores; partitions without one are left out."""

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        """Stores rows, and with `OFFSETS` the positions, in one transaction; returns how many rows are new.

        - `positions`: the next offsets after the rows' steps. Ignored with `HASH`.
        - `expected`: the offsets that the writer expects to be stored for the same partitions, without partitions that
          have none.

        Raises StaleWriter if the stored offsets differ from `expected`, and RowRefused if the target will never take
        one of the rows; it then stores nothing.
        """

    def close(self) -> None:
        """Closes the connection."""


class Sink(Protocol):
    """The declaration of a target, in the module of a graph. It is immutable, picklable, and makes no connection.

    Its `str` and `repr` name the target without credentials.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order of a row's values."""

    @property
    def evidence(self) -> Evidence:
        """The evidence that is stored beside the rows."""

    def open(self, consumer: str) -> SinkConnection:
        """Opens the connection of one worker. `consumer`: `graph.processor`, the owner of the stored offsets.

        Raises SinkUnavailable, and SettingsError if the table exists with other columns.
        """


@runtime_checkable
class Inspectable(Protocol):
    """An optional part of a Sink: it tells whether `open` would succeed. `kstreams recover status` uses it."""

    def inspect(self) -> None:
        """Raises what `open` would raise, creates and changes nothing, and leaves no connection open.

        A missing table that `open` creates is not an error.
        """


@runtime_checkable
class RowRules(Protocol):
    """An optional part of a Sink: it tells, without the target, which rows the target refuses. TestDriver uses it."""

    def check(self, rows: Sequence[Row]) -> None:
        """Raises RowRefused, as `SinkConnection.write` does, for the first row that the table refuses.

        The table is the one that the sink creates. Other types, constraints or triggers of an existing table are not
        known.
        """
