"""Exactly once with a journal: snapshot, choices, attempt and outputs, each durable before the next.

The tasks of a worker deliver a *unit* together: a batch of input sets from each task. Each stage of a unit is finished
before the next one begins. The numbers in brackets refer to the algorithm's description.

1. A snapshot of each task that has none in force (1 and 2), in a transaction of the journal's producer.
2. The choices of an alts that are not recorded yet (4a), in another transaction.
3. The functions (3 to 6).
4. The outputs, flushed in their transaction: the client then knows their offsets (7a to 7c).
5. The attempt of each task (7d; 8 for a task that writes nothing), in a transaction of the journal.
6. The commit of the outputs, with the offsets of the inputs (7e).

Each transaction of the journal also has the offsets of its tasks: the group refuses them from a worker that no longer
holds the tasks, and a new holder does not read them before the transaction has ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial

from kstreams_py.errors import ClientError
from kstreams_py.graph.guarantees import Durability
from kstreams_py.graph.names import recorder_id
from kstreams_py.kafka.contracts import TOPIC, Output, ProducerMode
from kstreams_py.kafka.leftovers import Leftovers
from kstreams_py.kafka.transactions import place_options
from kstreams_py.metrics import StepCounts
from kstreams_py.processing.commits.committer import Context
from kstreams_py.processing.commits.guarantees import ExactlyOnce
from kstreams_py.processing.commits.session import Session
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.journal.records import (
    NEWEST,
    Attempt,
    OutputPlace,
    RecordType,
    Snapshot,
    attempt_record,
    choices_record,
    snapshot_record,
)
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.records import HASH_HEADER, Message, Positions
from kstreams_py.steps.plan import Part, Plan, partition_of

logger = logging.getLogger(__name__)


class Journaled(ExactlyOnce):
    """Outputs and offsets are committed in one transaction, after the attempt is recorded in a journal.

    Outputs on another cluster are committed with a copy of the attempt, in place of the offsets.
    """

    commits_each_intake = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.journal, DeliveryJournal)
        self._deliveries = context.journal
        self._name = context.name
        recorder = recorder_id(context.transactional_id)
        self._recorder = Session(
            self._producer_mode(context.processor.durability),
            context.consumer,
            context.environment,
            self.attempts,
            transactional_id=recorder,
            counters=context.counters,
        )
        """The journal's producer: it commits transactions while a transaction of outputs is open."""
        cluster = context.environment.cluster
        options = place_options(context.environment.settings.bootstrap_servers)
        self.leftovers.append(Leftovers(cluster, options, recorder, context.journaled, context.name))
        self._parts: list[Part] = []
        self._places: dict[int, dict[str, OutputPlace]] = {}
        """By partition number and topic, the place of the last output that was written."""
        self._dropped = Counter[int]()
        """By partition number, the failed steps without a dead letter."""

    @classmethod
    def _producer_mode(cls, durability: Durability) -> ProducerMode:
        return ProducerMode(cls.transactional, durability.acks, cls.may_repeat, reports=True)

    def start(self) -> None:
        if self._processor.cluster:
            logger.info(
                "%s: outputs are on cluster %r: deliveries go through the journal %s",
                self._processor.id, self._processor.cluster, self._deliveries.topic,
            )  # fmt: skip
        super().start()
        self._recorder.start()

    def end(self) -> None:
        super().end()
        self._recorder.end()

    @property
    def due(self) -> bool:
        """Whether a unit is processed: each unit is committed by itself."""
        return self._since is not None

    def prepare(self, intake: Taken) -> None:
        if self.busy:
            self.commit()
        numbers = dict.fromkeys(map(partition_of, intake.steps))
        if new := {n: self._take_snapshot(n) for n in numbers if n not in self._deliveries.snapshots}:
            records = [snapshot_record(self._deliveries.topic, each) for each in new.values()]
            left = {n: self._left_of(n) for n in new if n in self._deliveries.choices}
            # together with the snapshot: the steps may have run, and a crash in between would lose their order
            records += [choices_record(self._deliveries.topic, n, each) for n, each in left.items() if each.runs]
            positions = self._offsets_of(new)
            self._transact(positions, records)
            self._ledger.commit(positions)
            self._deliveries.snapshots |= new
            self._deliveries.choices |= left
        if chosen := self._unrecorded(intake.choices, numbers):
            records = [choices_record(self._deliveries.topic, n, each) for n, each in chosen.items()]
            self._transact(self._committed(chosen), records)
            self._deliveries.choices |= chosen

    def write(self, plan: Plan) -> None:
        begin = 0
        for part in plan.parts:
            self._ask_for_places(part.partition, plan.outputs, range(begin, begin + part.outputs))
            begin += part.outputs
        self._parts += plan.parts
        if self._processor.errors is None:
            self._dropped.update(failure.inputs[0].partition() for failure in plan.failures)
        super().write(plan)

    def _commit(self) -> None:
        if not self._parts:  # only transaction markers were passed
            # a task with a snapshot in force must stay at its committed offsets, or it could not be recovered
            numbers = {tp.partition for tp in self._ledger.cursors} - self._deliveries.snapshots.keys()
            if positions := self._uncommitted(numbers):
                self._transact(positions, [])
                self._ledger.commit(positions)
            return
        writing = {part.partition for part in self._parts if part.outputs}
        if writing:
            self._send()
            self._call(lambda producer: producer.flush())
        attempts = {part.partition: self._describe(part) for part in self._parts}
        if writing and self._deliveries.delivered is not None:
            self._confirm(self._deliveries.delivered, {number: attempts[number] for number in writing})
        self._record_attempts(attempts, writing)
        if writing:
            # the attempt was sent with the offsets before the delivery: a late copy would set the group back
            self._recorder.renew_if_tainted()
            positions = self._uncommitted(writing)
            if self._deliveries.delivered is None:
                self._call(lambda producer: producer.send_offsets(positions, self._consumer))
                self._ask(positions, self._commit_transaction)
                self._ledger.commit(positions)
            else:  # the next snapshot, or a turn without records, commits the offsets
                self._ask(positions, self._commit_transaction)
            self._deliveries.deliver(writing)

    def _confirm(self, topic: str, attempts: Mapping[int, Attempt]) -> None:
        """Writes attempts in the transaction of their outputs: they are visible only if the outputs are."""
        records = [attempt_record(topic, number, each, NEWEST) for number, each in attempts.items()]
        self._call(lambda producer: producer.write(records))

    def _record_attempts(self, attempts: Mapping[int, Attempt], writing: Collection[int]) -> None:
        """Makes the attempts durable; this also commits the deliveries that write nothing."""
        records = [attempt_record(self._deliveries.topic, number, each) for number, each in attempts.items()]
        silent = attempts.keys() - set(writing)
        moves = self._uncommitted(silent)
        counts = self._count_silent(silent)
        self._ask(moves, lambda: self._transact(self._committed(writing) | moves, records), counts)
        self.tally.committed(counts)
        self._ledger.commit(moves)
        self._deliveries.deliver(silent)

    def _count_silent(self, silent: Collection[int]) -> StepCounts:
        """Counts the steps of tasks that write nothing."""
        steps = sum(part.steps for part in self._parts if part.partition in silent)
        return StepCounts(records_in=steps, dropped=sum(self._dropped[number] for number in silent))

    def _describe(self, part: Part) -> Attempt:
        """Returns the attempt of a task's delivery."""
        writes = RecordType.OUTPUT if part.outputs > part.dead_letters else RecordType.ERROR
        return Attempt(
            writes if part.outputs else RecordType.NIL,
            self._deliveries.snapshots[part.partition].hash,
            part.delivery_hash,
            part.steps,
            self._deliveries.writer,
            self._inputs(part.partition),
            tuple(self._places.get(part.partition, {}).values()),
            self._processor.cluster,
        )

    def _ask_for_places(self, number: int, outputs: list[Output], within: range) -> None:
        """Makes the client report where the last output to each topic is written."""
        last = {outputs[at][TOPIC]: at for at in within}
        for at in last.values():
            topic, value, key, partition, _, _, timestamp, headers = outputs[at]
            digest = dict(headers or ())[HASH_HEADER] or b""
            located = partial(self._locate, number, digest)
            outputs[at] = (topic, value, key, partition, located, None, timestamp, headers)

    def _locate(self, number: int, digest: bytes, error: object, message: Message) -> None:
        if error is None:
            place = OutputPlace(message.topic(), message.partition(), message.offset(), digest)
            self._places.setdefault(number, {})[place.topic] = place

    def _recover(self, error: ClientError) -> bool:
        rewinds = super()._recover(error)
        if self._recorder.state is not SessionState.READY:
            self._recorder.abort_or_renew(0.0)
        return rewinds

    def lost(self) -> None:
        super().lost()
        self._deliveries.forget()

    def _forget(self) -> None:
        super()._forget()
        self._parts, self._places = [], {}
        self._dropped.clear()

    def _unrecorded(self, choices: Mapping[int, Choices], numbers: Collection[int]) -> dict[int, Choices]:
        """Returns the choices of an alts that are not recorded for the snapshots in force."""
        left = {n: self._undelivered(n, chosen) for n, chosen in choices.items() if n in numbers}
        return {n: chosen for n, chosen in left.items() if self._left_of(n).runs[: len(chosen.runs)] != chosen.runs}

    def _left_of(self, number: int) -> Choices:
        """Returns the undelivered part of the choices that were recorded last."""
        return self._undelivered(number, self._deliveries.choices.get(number, Choices()))

    def _undelivered(self, number: int, choices: Choices) -> Choices:
        return choices.after({tp.topic: offset for tp, offset in self._offsets_of([number]).items()})

    def _take_snapshot(self, number: int) -> Snapshot:
        return Snapshot(self._name, number, self._inputs(number))

    def _inputs(self, number: int) -> tuple[InputStart, ...]:
        """Returns the next offsets of the inputs of a task."""
        return tuple(
            InputStart(tp.topic, self._deliveries.topic_ids[tp.topic], cursor.next)
            for tp, cursor in sorted(self._ledger.cursors.items())
            if tp.partition == number
        )

    def _committed(self, numbers: Collection[int]) -> Positions:
        return {tp: cursor.committed for tp, cursor in self._ledger.cursors.items() if tp.partition in numbers}

    def _uncommitted(self, numbers: Collection[int]) -> Positions:
        return {tp: at for tp, at in self._ledger.uncommitted.items() if tp.partition in numbers}

    def _offsets_of(self, numbers: Collection[int]) -> Positions:
        return {tp: cursor.next for tp, cursor in self._ledger.cursors.items() if tp.partition in numbers}
