"""The journal of one processor: reads the last deliveries of its tasks, and knows the snapshots in force."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from kstreams_py.errors import (
    BrokerUnavailable,
    DecodeError,
    Fatal,
    KStreamsError,
    RecoveryUndecidable,
    Retriable,
    Unavailable,
)
from kstreams_py.graph.declarations import Processor
from kstreams_py.kafka.contracts import TRANSACTIONAL, Cluster, TopicInfo
from kstreams_py.kafka.foreign_records import foreign
from kstreams_py.kafka.transactions import command, find_command, place_options
from kstreams_py.processing.journal.records import (
    CHOICES_ALONE,
    Attempt,
    OutputPlace,
    RecordType,
    Snapshot,
    Unit,
    decode,
    newest_unit,
    read,
    type_of,
)
from kstreams_py.processing.journal.recovery import OutputFound, Recovery, recover, show
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.records import HASH_HEADER, Message, Positions, TopicPartition, readable_headers
from kstreams_py.steps.environment import Environment

MARGIN_SECONDS: Final = 30.0
"""Seconds to wait beyond transaction_timeout_ms: a coordinator checks for timed-out transactions every 10 s."""


class HiddenWaits:
    """The waits of one worker for records that an open transaction hides."""

    def __init__(self, processor: str, environment: Environment) -> None:
        """`processor` is its id."""
        self._processor = processor
        self._settings = environment.settings
        self._clock = environment.clock
        self._limit = environment.settings.transaction_timeout_ms / 1000 + MARGIN_SECONDS
        self._since: dict[TopicPartition, float] = {}
        """By partition, the clock time since which records are hidden."""

    def clear(self) -> None:
        """Notes that nothing is hidden any more."""
        self._since.clear()

    def wait(self, cluster: Cluster, tp: TopicPartition, offset: int, what: str, name: str = "") -> NoReturn:
        """Raises Retriable; after `transaction_timeout_ms` and MARGIN_SECONDS, Unavailable if records are still hidden.

        Each message names the commands that show or end the transaction, if a command can help.

        - `cluster`, `name`: the cluster that has the partition, and its name in the settings.
        - `offset`, `what`: the offset of the first hidden record, and what is hidden.
        """
        options = place_options(self._settings.bootstrap_servers, name)
        hides = f"{self._processor}: a transaction hides {what}"
        if self._clock() - self._since.setdefault(tp, self._clock()) < self._limit:
            raise Retriable(f"{hides}: `{find_command(options, [tp.topic])}` shows whether it hangs")
        try:
            found = [each for each in cluster.open_transactions(tp) if each.start <= offset]
        except KStreamsError as error:
            raise Unavailable(
                f"{hides}, for more than {self._limit:g} s, and which one is not known: {error}: end it by the command "
                f"that `{find_command(options, [tp.topic])}` prints, then start again"
            ) from None
        if not found:
            raise Retriable(f"{hides}, which has ended just now")
        now = time.time()
        known = "; ".join(each.describe(now) for each in found)
        ends = [f"`{command('abort', tp, each.start)}{options}`" for each in found if each.hangs is not False]
        remedy = f"end it by {', '.join(ends)}" if ends else "stop its producer, or wait for its time-out"
        raise Unavailable(
            f"{hides}, for more than {self._limit:g} s, and whether the delivery was committed is not known without "
            f"them: {known}: {remedy}, then start again"
        )


logger = logging.getLogger(__name__)

WINDOW: Final = 16
"""How many records at a journal's end are first searched for its newest snapshot; then twice as many, and so on."""

TRUNCATED_EVERY: Final = 1_000
"""How many deliveries a task makes before the records below its newest snapshot are deleted."""

ATTEMPT: Final = "an attempt at a delivery"

OFFSETS_MIN: Final = 4
"""The minimum number of offsets that a delivery takes: for a snapshot and an attempt, each with its marker."""


class DeliveryJournal:
    """Recovers the tasks that a worker is assigned, and knows the snapshot and the choices in force for each.

    A snapshot is in force from its own commit until its delivery is committed: a task whose delivery failed makes it
    again at the same snapshot.
    """

    def __init__(
        self,
        topic: str,
        processor: Processor,
        environment: Environment,
        topics: Mapping[str, TopicInfo],
        group: str,
        writer: str,
        delivered: str | None = None,
    ) -> None:
        """Makes no request.

        - `topic`: the journal.
        - `topics`: the processor's inputs and outputs.
        - `group`: the consumer group that has the committed offsets.
        - `writer`: the transactional id of this worker's outputs.
        - `delivered`: the topic of committed attempts, beside the outputs on another cluster; None if there is none.
        """
        self.topic = topic
        self.delivered = delivered
        self.writer = writer
        self.snapshots: dict[int, Snapshot] = {}
        """The snapshot in force, by partition number."""
        self.choices: dict[int, Choices] = {}
        """By partition number, the choices that were recorded last; some of them may be delivered."""
        self._processor = processor.id
        self._target = environment.target
        self._group = group
        self._place = processor.cluster
        self._written = set(processor.written)
        self._cluster = environment.cluster
        self._outputs = environment.cluster.named(processor.cluster)
        self._hidden = HiddenWaits(processor.id, environment)
        self.topic_ids = {each.name: topics[each.name].topic_id for each in processor.inputs}
        """The broker's id of each input."""
        self._compacted = {name for name, info in topics.items() if info.is_compacted}
        self._delivered: dict[int, int] = {}
        """By partition number, how many deliveries are not deleted yet; a recovery estimates it from the offsets."""

    def recover(self, positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        """Recovers the tasks at these committed offsets; returns where they resume, and the choices that alts follow.

        Raises Retriable while an open transaction hides records that are needed, or a cluster does not answer;
        Unavailable once a transaction has hidden them for too long (HiddenWaits); RecoveryUndecidable if the records
        contradict each other.
        """
        self.forget()
        try:
            recovered = self._recover(positions)
        except BrokerUnavailable as error:  # both clusters answered when this process started
            raise Retriable(str(error)) from None
        self._hidden.clear()
        return recovered

    def _recover(self, positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        committed: dict[int, dict[str, int]] = {}
        for tp, offset in positions.items():
            committed.setdefault(tp.partition, {})[tp.topic] = offset
        choices, moved = {}, dict(positions)
        starts, ends = self._bounds([TopicPartition(self.topic, number) for number in committed])
        for journal in sorted(starts):
            number = journal.partition
            self._delivered[number] = (ends[journal] - starts[journal]) // OFFSETS_MIN
            recovery = self._decide(journal, starts[journal], ends[journal], committed[number], fences=True)
            logger.info("%s: partition %d: recovery %s", self._processor, number, recovery.branch)
            for topic, offset in recovery.offsets.items():
                if (tp := TopicPartition(topic, number)) in moved:
                    moved[tp] = max(moved[tp], offset)
            if recovery.snapshot is not None:
                self.snapshots[number] = recovery.snapshot
            if recovery.choices is not None:
                choices[number] = recovery.choices
                if recovery.branch != "1a":
                    self.choices[number] = recovery.choices
        return moved, choices

    def look(self, number: int, committed: Mapping[str, int]) -> Recovery:
        """Decides where a task resumes, without fencing a producer. Raises Retriable while records are hidden.

        - `committed`: the committed offset of each of its inputs.

        Raises BrokerUnavailable if a cluster does not answer, and RecoveryUndecidable as `recover` does.
        """
        self._hidden.clear()
        journal = TopicPartition(self.topic, number)
        starts, ends = self._bounds([journal])
        return self._decide(journal, starts[journal], ends[journal], committed, fences=False)

    def _decide(
        self, journal: TopicPartition, start: int, end: int, committed: Mapping[str, int], *, fences: bool
    ) -> Recovery:
        """Decides from the records of a journal between `start` and `end`; for `fences`, see `_is_confirmed`."""
        number = journal.partition
        tail = self._tail(journal, start, end)
        try:
            if start and not tail:
                raise RecoveryUndecidable(
                    f"all its records before offset {start} were deleted, and whether the last delivery was committed "
                    "is not known without the newest ones"
                )
            unit = newest_unit(tail, number)
            confirmed = self._is_confirmed(unit, number, fences=fences)
            if unit is None and tail and type_of(tail[-1]) == CHOICES_ALONE:
                found = read(tail[-1], number)
                return Recovery("1a", choices=found if isinstance(found, Choices) else None)
            return recover(unit, committed, self.topic_ids, self._read_back(unit), confirmed)
        except RecoveryUndecidable as error:
            if self._has_changed(journal, end, committed):
                raise Retriable(f"another worker has delivered while journal {journal} was read") from None
            raise RecoveryUndecidable(
                f"{self._processor}: partition {number}: journal {journal}: {error}: decide where it goes on, "
                f"and set it (`kstreams recover reset {self._target} {self._processor}`), then start again"
            ) from None

    def deliver(self, partitions: Collection[int]) -> None:
        """Notes that deliveries are committed: their snapshots are no longer in force."""
        for number in partitions:
            self.snapshots.pop(number, None)
            self._delivered[number] = self._delivered.get(number, 0) + 1
        if due := [number for number in partitions if self._delivered[number] >= TRUNCATED_EVERY]:
            self._delivered |= dict.fromkeys(due, 0)
            try:
                self._truncate([TopicPartition(self.topic, number) for number in due])
            except (Retriable, BrokerUnavailable) as error:  # the deliveries are committed; a later one tries again
                logger.info("%s: journal %s is not truncated now: %s", self._processor, self.topic, error)

    def forget(self) -> None:
        """Forgets everything: other workers may hold the tasks now."""
        self.snapshots.clear()
        self.choices.clear()

    def _bounds(self, journals: Collection[TopicPartition]) -> tuple[Positions, Positions]:
        """Returns the first and the end offsets of journals. If records are hidden, HiddenWaits.wait() raises."""
        starts, ends = self._cluster.starts(journals), self._cluster.ends(journals)
        written = self._cluster.ends(journals, committed=False)
        for tp in sorted(journals):
            if ends[tp] < written[tp]:
                self._hidden.wait(self._cluster, tp, ends[tp], f"journal {tp} from offset {ends[tp]} on")
        return starts, ends

    def _has_changed(self, journal: TopicPartition, end: int, committed: Mapping[str, int]) -> bool:
        """Returns whether the end of a journal or the committed offsets of its task have changed since they were read.

        A worker that was frozen while it read the evidence may have been replaced, and its replacement may have
        delivered.
        """
        if self._cluster.ends([journal], committed=False)[journal] != end:
            return True
        inputs = {TopicPartition(topic, journal.partition): at for topic, at in committed.items()}
        with suppress(Fatal):  # this client may have no right to describe the group
            now = self._cluster.group_offsets(self._group, inputs).committed
            return any(now.get(tp, at) != at for tp, at in inputs.items())
        return False

    def _tail(self, journal: TopicPartition, start: int, end: int) -> Sequence[Message]:
        """Returns the records of a task from its newest snapshot on; all records if there is none."""
        window = WINDOW
        while True:
            begin = max(start, end - window)
            messages = self._cluster.read(journal, begin)
            snapshots = [at for at, m in enumerate(messages) if type_of(m) == RecordType.SNAPSHOT]
            if snapshots or begin <= start:
                return messages[snapshots[-1] :] if snapshots else messages
            window *= 2

    def _is_confirmed(self, unit: Unit | None, number: int, *, fences: bool) -> bool | None:
        """Returns whether a task's newest attempt is recorded beside its outputs; None if it needs no such record.

        The group of the inputs cannot refuse a commit on another cluster. So, with `fences`, the producer that may
        still request that commit is fenced first, unless the commit has taken place. Raises RecoveryUndecidable if a
        later delivery is recorded.
        """
        if self.delivered is None:
            return None
        place, attempt = TopicPartition(self.delivered, number), None if unit is None else unit.attempt
        if self._is_newest(attempt, place, unit):
            return True
        if attempt is None or attempt.type is RecordType.NIL or attempt.cluster != self._place:
            return None
        if fences and attempt.writer != self.writer:
            self._fence(attempt.writer)
        if (end := self._outputs.ends([place])[place]) < self._outputs.ends([place], committed=False)[place]:
            self._hidden.wait(self._outputs, place, end, f"{place} from offset {end} on", self._place)
        return self._is_newest(attempt, place, unit)

    def _is_newest(self, attempt: Attempt | None, place: TopicPartition, unit: Unit | None) -> bool:
        """Returns whether an attempt is the newest one recorded at `place`, that is, committed with its outputs.

        Raises RecoveryUndecidable if the newest one there is later than the journal's newest unit.
        """
        m = self._outputs.newest(place)
        if m is None:
            return False
        try:
            newest = None if m.value() is None else decode(m, place.partition)
        except (DecodeError, ValueError) as error:
            raise RecoveryUndecidable(foreign(m, ATTEMPT, error)) from None
        if newest is None:  # `recover reset` deletes it
            return False
        if not isinstance(newest, Attempt):
            raise RecoveryUndecidable(foreign(m, ATTEMPT, f"its type is {type_of(m)!r}"))
        if newest == attempt:
            return True
        stood = {} if unit is None else {(at.topic, at.topic_id): at.offset for at in unit.snapshot.inputs}
        if unit is None or any(at.offset > stood.get((at.topic, at.topic_id), at.offset) for at in newest.inputs):
            outputs = ", ".join(map(str, newest.outputs))
            stands = "no snapshot" if unit is None else f"its newest snapshot at {show(unit.snapshot.offsets)}"
            raise RecoveryUndecidable(
                f"{place}, offset {m.offset()}, has a delivery to {show(newest.offsets)} that was committed with its "
                f"outputs ({outputs}), and the journal, with {stands}, has lost it"
            )
        return False

    def _fence(self, writer: str) -> None:
        """Completes or aborts the transaction of another worker, which can then commit nothing more."""
        logger.info("%s: fencing %s, which had the task before", self._processor, writer)
        producer = self._outputs.producer(TRANSACTIONAL, writer)
        try:
            producer.init_transactions()
        finally:
            producer.drop()

    def _read_back(self, unit: Unit | None) -> dict[OutputPlace, OutputFound]:
        """Returns what is found at the output places that a unit's attempt names."""
        if unit is None or unit.attempt is None:
            return {}
        found = dict.fromkeys(unit.attempt.outputs, OutputFound.UNDECLARED)
        written = self._written if unit.attempt.cluster == self._place else set[str]()
        places = {TopicPartition(at.topic, at.partition): at for at in found if at.topic in written}
        if not places:
            return found
        starts, ends = self._outputs.starts(places), self._outputs.ends(places)
        return found | {at: self._look(tp, at, starts[tp], ends[tp]) for tp, at in places.items()}

    def _look(self, tp: TopicPartition, place: OutputPlace, start: int, end: int) -> OutputFound:
        if place.offset < start:
            return OutputFound.DELETED
        if place.offset >= end:
            # each aborted record is below `end`, the last stable offset; a record from there on may still be committed
            if self._outputs.ends([tp], committed=False)[tp] > place.offset:
                self._hidden.wait(self._outputs, tp, place.offset, f"{place}, where it may have written", self._place)
            return OutputFound.OTHER
        messages = self._outputs.read(tp, place.offset, 1)
        if not messages or messages[0].offset() != place.offset:
            return OutputFound.DELETED if place.topic in self._compacted else OutputFound.OTHER
        return OutputFound.SAME if _is_of(place.delivery_hash, messages[0]) else OutputFound.OTHER

    def _truncate(self, journals: Sequence[TopicPartition]) -> None:
        """Deletes the records below the newest snapshots."""
        starts, ends = self._cluster.starts(journals), self._cluster.ends(journals)
        for journal in journals:
            tail = self._tail(journal, starts[journal], ends[journal])
            if tail and type_of(tail[0]) == RecordType.SNAPSHOT:
                self._cluster.truncate(journal, tail[0].offset())


def _is_of(delivery_hash: bytes, message: Message) -> bool:
    """Returns whether a record is an output of the delivery with this hash."""
    return dict(readable_headers(message)).get(HASH_HEADER) == delivery_hash
