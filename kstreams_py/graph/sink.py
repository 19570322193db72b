"""The protocol of a sink: a table elsewhere that stores rows, each once.

There are two kinds of evidence that a row is stored. With `HASH` the delivery hash of a row's step is stored beside the
row; rows that come again are left unchanged. With `OFFSETS` the next offsets of the inputs are stored beside the rows;
a worker continues from them, and the group's offsets only follow.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from kstreams_py.records import Positions, TopicPartition


class Evidence(StrEnum):
    """What a sink stores beside the rows, in the same transaction, so that each is stored once."""

    HASH = "hash"
    """The delivery hash of each row's step: a row whose hash is stored is left unchanged."""
    OFFSETS = "offsets"
    """The next offsets of the inputs: a writer whose expectation of them is wrong is refused."""


class Row(NamedTuple):
    """A row of the table.

    - `delivery_hash`: 16 bytes, unique to the row, and the same at every attempt: that of its step, which the dead
      letter of the step would have; of further rows of a step, a BLAKE2b hash of that and of the number of the row.
    - `values`: one for each column of the sink.
    """

    delivery_hash: bytes
    values: tuple[Any, ...]


class SinkConnection(Protocol):
    """One thread's connection to a target. After an exception it stays usable: it connects again when next called.

    The topic of a partition has the broker's id of the topic in its name (`orders@<id>`), so that the offsets of a
    topic that was deleted are not those of one that is created with its name.

    Every method raises SinkUnavailable if the target cannot be used now.
    """

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        """Reads the next offsets that the target has for these partitions; none for those that it does not have."""

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        """Stores rows, and with `OFFSETS` the positions, in one transaction; returns how many rows are new.

        - `positions`: the next offsets after the rows' steps. Ignored with `HASH`.
        - `expected`: the stored offsets of the same partitions, as far as the writer knows; a partition that has none
          is missing.

        Raises StaleWriter if the stored offsets differ from `expected`, RowRefused if the target never takes one of the
        rows; nothing is stored then.
        """

    def close(self) -> None:
        """Closes the connection."""


class Sink(Protocol):
    """The declaration of a target, in the module of a graph. It is immutable, picklable, and makes no connection.

    Its text, by `str` and `repr`, names the target without credentials.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order of a row's values."""

    @property
    def evidence(self) -> Evidence:
        """What is stored beside the rows."""

    def open(self, consumer: str) -> SinkConnection:
        """Makes the connection of one worker. `consumer`: the processor with its graph, which owns stored offsets.

        Raises SinkUnavailable; SettingsError if the table exists with other columns.
        """
