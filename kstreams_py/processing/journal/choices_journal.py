"""The journal of one alts processor: the newest choices of each of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kstreams_py.errors import DecodeError, TopicError
from kstreams_py.kafka.contracts import Cluster, Output
from kstreams_py.kafka.foreign_records import foreign
from kstreams_py.processing.journal.records import CHOICES_ALONE, choices_record, decode, type_of
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.records import Positions, TopicPartition

JOURNAL_TRUNCATED_EVERY: Final = 1_000
"""How many choices a task saves before all its records but the newest are deleted."""

OFFSETS_MIN: Final = 2
"""The minimum number of offsets that choices take: one for their record, one for the marker of its transaction."""


class ChoicesJournal:
    """Saves and reads the newest choices of the tasks that this worker holds."""

    def __init__(self, topic: str, cluster: Cluster) -> None:
        self._topic = topic
        self._cluster = cluster
        self._newest: dict[int, Choices] = {}
        """Choices that this worker saved: they may not be readable yet, because markers follow the commit's answer."""
        self._saved: dict[int, int] = {}
        """By partition number, how many choices are not deleted yet; a recovery estimates it from the offsets."""

    def recover(self, positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        """Returns these offsets, and the choices that each of their tasks saved last. Raises TopicError."""
        numbers = {tp.partition for tp in positions} - self._newest.keys()
        if unread := [TopicPartition(self._topic, number) for number in sorted(numbers)]:
            starts, ends = self._cluster.starts(unread), self._cluster.ends(unread)
            self._saved |= {tp.partition: (ends[tp] - starts[tp]) // OFFSETS_MIN for tp in unread}
        return positions, {tp.partition: self.newest(tp.partition) for tp in positions}

    def newest(self, partition: int) -> Choices:
        """Returns the choices that a task saved last, even if some have been delivered since.

        Raises TopicError if a newer release or another program wrote the record.
        """
        if partition in self._newest:
            return self._newest[partition]
        m = self._cluster.newest(TopicPartition(self._topic, partition))
        if m is None:
            return Choices()
        try:
            # the first releases wrote no type
            found = decode(m, partition) if m.headers() else Choices.decode(m.value())
        except (DecodeError, ValueError) as error:
            raise TopicError(
                f"{foreign(m, 'a record of a journal', error)}: stop all workers, and delete the records of this "
                f"partition before offset {m.offset() + 1} (`kafka-delete-records`): the choices of steps that are not "
                "committed are lost, and these may read their inputs in another order"
            ) from None
        # choices of a journaled delivery are done: its hash names the records that it has read
        return found if isinstance(found, Choices) and type_of(m) in ("", CHOICES_ALONE) else Choices()

    def records(self, choices: Mapping[int, Choices]) -> list[Output]:
        """Returns a record for each task, to be committed before the functions run."""
        return [choices_record(self._topic, partition, each, CHOICES_ALONE) for partition, each in choices.items()]

    def saved(self, choices: Mapping[int, Choices]) -> None:
        """Keeps committed choices; deletes a task's older ones once it has saved JOURNAL_TRUNCATED_EVERY."""
        self._newest |= choices
        for partition in choices:
            self._saved[partition] = self._saved.get(partition, 0) + 1
        for partition in [each for each in choices if self._saved[each] >= JOURNAL_TRUNCATED_EVERY]:
            self._saved[partition] = 0
            tp = TopicPartition(self._topic, partition)
            if (m := self._cluster.newest(tp)) is not None:
                self._cluster.truncate(tp, m.offset())

    def forget(self) -> None:
        """Forgets all choices: other workers may hold the tasks now, and save newer ones."""
        self._newest = {}
