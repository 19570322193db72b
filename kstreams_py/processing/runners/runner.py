"""Calls a processor's function for the steps of an intake, and makes a plan of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, ClassVar, Final

from kstreams_py.errors import DecodeError, GraphError, RecordRefused, Refused
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.functions import show_type
from kstreams_py.graph.hashes import pack_offset
from kstreams_py.kafka.contracts import HEADERS, TOPIC, Output
from kstreams_py.metrics import EventCounts
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import Inputs, Message, Out, Positions, Step, TopicPartition
from kstreams_py.state.keyed import TaskStore
from kstreams_py.steps.dead_letters import DeadLetters, Failure
from kstreams_py.steps.failures import Failures, Refusal, next_refusal
from kstreams_py.steps.outputs import Outputs, are_many, decoder, delivery_hash_of, is_same, value_bytes
from kstreams_py.steps.plan import Intake, Part, Plan, partition_of, partitions_of, read_by
from kstreams_py.steps.tracing import Run, Tracing, traced

Read = tuple[tuple[str, int, int], ...]
"""Topic, partition and offset of each input of a step."""


UNDECODED: Final = object()
"""Stands for a value that is not decoded yet."""


class Runner:
    """Runs the steps of one processor, and advances the ledger past those that are done."""

    overlaps: ClassVar[bool] = False
    """Whether calls may be under way when `run` returns."""

    def __init__(
        self,
        processor: Processor,
        tasks: Tasks,
        registry: Registry,
        dead_letters: DeadLetters | None,
        *,
        traces_outputs: bool = False,
        tracing: Tracing | None = None,
        stores: Mapping[int, TaskStore] | None = None,
    ) -> None:
        """Makes the runner of one processor.

        - `traces_outputs`: whether `replacement` can find the step of each output.
        - `tracing`: makes spans.
        - `stores`: the state of each task, by its partition number.
        """
        self._processor = processor
        self._stores = {} if stores is None else stores
        self._tasks = tasks
        self._ledger = tasks.ledger
        self._joins = processor.joins
        self._sink = processor.ignores_results
        self._names_place = processor.joins and processor.guarantee.is_transactional
        self._outputs = Outputs(processor, registry, self._place if self._names_place else None)
        self._decode = {t.name: decoder(bind(t.value, registry, f"{t.name}-value")) for t in processor.inputs}
        self._decode_key = {t.name: decoder(bind(t.key, registry, f"{t.name}-key")) for t in processor.inputs}
        self._failures = Failures(processor, dead_letters, self._failure, self._refusal)
        self.retries = self._failures.retries
        self._refused: dict[Read, Refusal] = {}
        self.events: EventCounts | None = None
        """The counts of events, if the processor applies events; None otherwise."""
        self._journaled = processor.journal is not None
        self._by_task = self._journaled or (processor.batch and processor.state is not None)
        self._owned = traces_outputs and not processor.hash_header
        """Whether the step of each output is kept (Plan.owners): no delivery hash names it."""
        self._run: Run = self._loop()
        self._run_refused: Run = self._give_dead_letters
        self._tracing = tracing
        if tracing is not None:
            self._run = traced(self._run, tracing, processor, tasks.delivery_hash)
            self._run_refused = traced(self._run_refused, tracing, processor, tasks.delivery_hash)

    def _loop(self) -> Run:
        """Returns the loop over the steps of this kind of processor."""
        if self._processor.batch:
            return self._run_batch
        if self._joins or self._processor.generator:
            return self._run_counted
        return self._run_records if self._processor.state is None else self._run_with_state

    def run(self, intake: Taken) -> Plan:
        """Calls the function for each step.

        Once the outputs are many (OUTPUTS_MAX, OUTPUT_BYTES), the steps that are left go back to the tasks. They also
        go back if a step must be run again; the partition of that step then waits.
        """
        plan = self._run_by_task(intake.steps) if self._by_task else self._run_steps(intake)
        plan.intake = intake
        self._put_back(intake, plan, intake.steps[plan.steps :])
        return plan

    def _run_steps(self, intake: Intake) -> Plan:
        return self._run_one_by_one(intake.steps) if self._refused or self._owned else self._run_together(intake)

    def _run_by_task(self, steps: Sequence[Any]) -> Plan:
        """Runs the steps task by task, so that the task of each output is known."""
        whole, size = Plan(), 0
        for partition, group in groupby(steps, partition_of):
            of_task = list(group)
            plan = self._run_steps(Intake(of_task))
            if plan.steps:
                last = of_task[plan.steps - 1]
                digest = self._tasks.delivery_hash(last if self._joins else (last,))
                plan.parts.append(Part(partition, plan.steps, len(plan.outputs), plan.dead_letters, digest))
            whole.add(plan)
            size += value_bytes(plan.outputs)
            if plan.steps < len(of_task) or are_many(whole.outputs, size):
                break
        return whole

    def _put_back(self, intake: Taken, plan: Plan, left: Sequence[Any]) -> None:
        """Gives the steps that are not done back to the tasks; steps that must be run again come first."""
        if intake.repeated:
            self._tasks.resume(partitions_of(plan.intake.steps))
        if plan.interrupt is None and left:
            if plan.again is not None:
                left = self._tasks.hold_back(plan.again.steps, left)
            if left:
                # the journal gets a snapshot for the steps that are left only once this plan is committed
                choices = intake.choices if self._journaled else {}
                self._tasks.rest = Taken(left, choices, prepared=not self._journaled, saved=intake.saved)

    def _run_together(self, intake: Intake) -> Plan:
        plan = Plan(intake=intake)
        self._run(intake.steps, plan)
        if self._processor.batch:  # a batch is done as a whole or not at all
            if (store := self._stores.get(partition_of(intake.steps[0]))) is not None:
                store.keep() if plan.again is None and plan.interrupt is None else store.undo()
            if plan.again is not None:
                return Plan(again=plan.again)
            if plan.interrupt is not None:
                return Plan(interrupt=plan.interrupt, tried=intake.positions() if plan.tried else {})
            self._ledger.advance(intake.positions())
        return plan

    def _run_one_by_one(self, steps: Sequence[Any]) -> Plan:
        """Runs step by step, so that the step of each output is known; makes dead letters of refused steps."""
        whole, size = Plan(), 0
        for step in steps:
            inputs = step if self._joins else (step,)
            if read_by(inputs) not in self._refused:
                plan = self._run_together(Intake([step]))
            else:
                plan = Plan(intake=Intake([step]))
                self._run_refused([step], plan)
                if plan.steps:
                    self._ledger.advance(Intake([step]).positions())
            whole.add(plan)
            if whole.interrupt is not None or whole.again is not None:
                break
            whole.owners += [inputs] * len(plan.outputs)
            size += value_bytes(plan.outputs)
            if are_many(whole.outputs, size):
                break
        return whole

    def _run_records(self, messages: Sequence[Message], plan: Plan) -> None:
        """Runs steps of one record. The hot loop: computes only what the function asks for or an output needs."""
        processor, tasks, sink, emit = self._processor, self._tasks.by_partition, self._sink, self._outputs.emit
        function, wants_step, alts = processor.function, processor.wants_step, processor.kind.is_alts
        hashed = wants_step or processor.target is not None or (processor.hash_header and not sink)
        topic, current, digest = processor.inputs[0].name, -1, b""
        decode, append = self._decode[topic], plan.outputs.append
        for m in messages:
            partition, offset = m.partition(), m.offset()
            if partition != current or (alts and m.topic() != topic):
                if alts:
                    topic = m.topic()
                    decode = self._decode[topic]
                current, task = partition, tasks[partition]
                cursor, prefix = task.cursors[topic], task.prefixes[topic]
            if hashed:
                digest = prefix + pack_offset(offset)
            value: Any = UNDECODED
            try:
                data = m.value()
                value = data if decode is None or data is None else decode(data)
                result = function(value, Step((m,), digest, self._decode_key[topic])) if wants_step else function(value)
                if result is None or sink:
                    pass
                elif emit is not None and type(result) is not Out:
                    append(emit(m, result, digest))
                else:
                    plan.outputs += self._outputs.of(result, (m,), digest)
            except BaseException as error:
                if not self._failures.handle((m,), error, plan, tried=value is not UNDECODED):
                    plan.steps = next(i for i, seen in enumerate(messages) if seen is m)
                    return
            cursor.next = offset + 1
        plan.steps = len(messages)

    def _run_with_state(self, messages: Sequence[Message], plan: Plan) -> None:
        """Does the same as `_run_records` with the state of the task, until the changes of the state are large.

        If a step raises, its changes to the state are undone.
        """
        processor, tasks, sink, emit = self._processor, self._tasks.by_partition, self._sink, self._outputs.emit
        function, wants_step, append = processor.function, processor.wants_step, plan.outputs.append
        topic, current = "", -1
        for m in messages:
            partition, offset = m.partition(), m.offset()
            if partition != current or m.topic() != topic:
                topic, current, task, store = m.topic(), partition, tasks[partition], self._stores[partition]
                cursor, prefix, decode = task.cursors[topic], task.prefixes[topic], self._decode[topic]
                decode_key = self._decode_key[topic]
            digest = prefix + pack_offset(offset)
            value: Any = UNDECODED
            try:
                data = m.value()
                value = data if decode is None or data is None else decode(data)
                steps = (Step((m,), digest, decode_key),) if wants_step else ()
                result = function(value, *steps, store)
                if result is None or sink:
                    pass
                elif emit is not None and type(result) is not Out:
                    append(emit(m, result, digest))
                else:
                    plan.outputs += self._outputs.of(result, (m,), digest)
            except BaseException as error:
                store.undo()
                if not self._failures.handle((m,), error, plan, tried=value is not UNDECODED):
                    return
            else:
                store.keep()
            cursor.next = offset + 1
            plan.steps += 1
            if store.is_full:
                return

    def _run_counted(self, steps: Sequence[Any], plan: Plan) -> None:
        """Runs joins (several records a step) and generators, until the outputs or the changes of the state are many.

        If a step raises, its changes to the state are undone.
        """
        processor, tasks, size = self._processor, self._tasks.by_partition, 0
        for step in steps:
            inputs: Inputs = step if self._joins else (step,)
            digest = self._tasks.delivery_hash(inputs)
            store = self._stores.get(inputs[0].partition())
            values: Any = UNDECODED
            result: Any = None
            try:
                values = self._arguments(inputs, digest, store)
                result = processor.function(*values)
                if not self._sink:
                    outputs = self._outputs.of(result, inputs, digest)
                    plan.outputs += outputs
                    size += value_bytes(outputs)
                if store is not None:
                    store.keep()
            except BaseException as error:
                if store is not None:
                    self._abandon(result)
                    store.undo()
                if not self._failures.handle(inputs, error, plan, tried=values is not UNDECODED):
                    return
            plan.steps += 1
            for m in inputs:
                tasks[m.partition()].cursors[m.topic()].next = m.offset() + 1
            if are_many(plan.outputs, size) or (store is not None and store.is_full):
                return

    def _abandon(self, result: Any) -> None:
        """Ends a generator whose output cannot be written: garbage-collected later, it could still change the state."""
        if self._processor.generator and result is not None:
            with suppress(BaseException):
                result.close()

    def _arguments(self, inputs: Inputs, digest: bytes, store: TaskStore | None) -> list[Any]:
        """Returns the function's arguments: the values, the step if it wants one, and the state if there is one."""
        values = [self._value(m) for m in inputs]
        if self._processor.wants_step:
            values.append(Step(inputs, digest, self._decode_key[inputs[0].topic()]))
        if store is not None:
            values.append(store)
        return values

    def _run_batch(self, steps: Sequence[Message] | Sequence[Inputs], plan: Plan) -> None:
        """Runs all steps in one call: a list of values per input goes in, a result or exception per step comes out.

        If the function raises, the failed step is not known: all steps become dead letters, each with its hash. A retry
        repeats all of them, whichever failed.
        """
        batch, columns = self._columns(steps, plan)
        if plan.interrupt is not None or plan.again is not None:
            return
        emit, append, one, tasks = self._outputs.emit, plan.outputs.append, not self._joins, self._tasks.by_partition
        hashed, alts = self._processor.hash_header, self._processor.kind.is_alts
        topic, current, prefix, digest = self._processor.inputs[0].name, -1, b"", b""
        for step, result in zip(batch, self._call_batch(batch, columns), strict=True):
            try:
                if isinstance(result, BaseException):
                    raise result
                if result is None or self._sink:
                    continue
                if emit is not None and one and type(result) is not Out:
                    if hashed:
                        if (partition := step.partition()) != current or (alts and step.topic() != topic):
                            current, topic = partition, step.topic()
                            prefix = tasks[current].prefixes[topic]
                        digest = prefix + pack_offset(step.offset())
                    append(emit(step, result, digest))
                else:
                    inputs = (step,) if one else step
                    plan.outputs += self._outputs.of(result, inputs, self._tasks.delivery_hash(inputs))
            except BaseException as error:
                if not self._failures.handle((step,) if one else step, error, plan):
                    return
        plan.steps = len(steps)

    def _columns(self, steps: Sequence[Any], plan: Plan) -> tuple[Sequence[Any], list[list[Any]]]:
        """Returns the steps whose values could be decoded, and these values in a list for each input."""
        if not self._joins and not any(self._decode.values()):
            with suppress(DecodeError):  # raised by an Unreadable, which is found below
                return steps, [[m.value() for m in steps]]
        batch, rows = [], []
        for step in steps:
            inputs = step if self._joins else (step,)
            try:
                rows.append([self._value(m) for m in inputs])
                batch.append(step)
            except BaseException as error:
                if not self._failures.handle(inputs, error, plan, tried=False):
                    break
        return batch, [list(column) for column in zip(*rows, strict=True)]

    def _call_batch(self, batch: Sequence[Any], columns: list[list[Any]]) -> Sequence[Any]:
        """Returns one result per step; if the function raised, its exception for each step."""
        if not batch:
            return []
        arguments: list[Any] = columns
        if self._processor.wants_step:
            of_step = [step if self._joins else (step,) for step in batch]
            arguments.append([Step(i, self._tasks.delivery_hash(i), self._decode_key[i[0].topic()]) for i in of_step])
        if (store := self._stores.get(partition_of(batch[0]))) is not None:
            arguments.append(store)
        try:
            results = self._processor.function(*arguments)
            if results is None:
                return [None] * len(batch)
            if isinstance(results, Mapping | str | bytes) and not self._processor.ignores_results:
                raise GraphError(
                    f"processor {self._processor.id!r} takes a batch and returned {show_type(results)}: return a "
                    "list with one result per record"
                )
            if len(results) != len(batch):
                raise GraphError(
                    f"processor {self._processor.id!r} returned {len(results)} for a batch of {len(batch)}: "
                    "return one result per record, None for no output"
                )
        except BaseException as error:
            if store is not None:
                store.undo()
            return [error] * len(batch)
        return list(results)

    def _value(self, m: Message) -> Any:
        value, decode = m.value(), self._decode[m.topic()]
        return value if decode is None or value is None else decode(value)

    # Steps that fail.

    def _place(self, inputs: Inputs) -> bytes:
        """Returns the place of a step: the delivery hash that its first input alone would have."""
        return self._tasks.delivery_hash(inputs[:1])

    def _failure(self, inputs: Inputs, error: BaseException, attempts: int = 1) -> Failure:
        place = self._place(inputs) if self._names_place else None
        return Failure(inputs, self._tasks.delivery_hash(inputs), error, attempts, place)

    # Outputs that a topic refuses.

    def _refusal(self, inputs: Inputs) -> Refusal | None:
        """Returns why an output of the step that reads these records is refused; None if none is."""
        return self._refused.get(read_by(inputs)) if self._refused else None

    def refuse(self, intake: Intake, error: Refused) -> None:
        """Makes the only step of an intake a dead letter from now on; if that is refused, too, the least dead letter.

        Raises the mistake if the least one was refused, too, or if the processor has no dead-letter topic.
        """
        step: Any = intake.steps[0]
        if self._failures.dead_letters is None:
            inputs: Inputs = step if self._joins else (step,)
            raise self._failures.unreplaceable(error.mistake, inputs)
        read = read_by(step)
        self._refused[read] = next_refusal(self._refused.get(read), error)

    def _give_dead_letters(self, steps: Sequence[Any], plan: Plan) -> None:
        """Adds to the plan the dead letters of steps with an output that a topic has refused."""
        for step in steps:
            self._failures.add_dead_letter(step if self._joins else (step,), self._refused[read_by(step)].mistake, plan)
            plan.steps += 1

    # Overlapping calls: see OverlappingRunner. In this class each call has ended when `run` returns.

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """The start of the oldest call under way (see Calls); None if calls do not overlap."""
        return None

    @property
    def is_calling(self) -> bool:
        """Whether calls are under way, or about to be made."""
        return False

    @property
    def has_open(self) -> bool:
        """Whether steps are open: their calls are under way, or have ended and are not settled."""
        return False

    def finish(self) -> None:
        """Makes no more calls; those under way go on, and `run` settles them."""

    def under_way(self) -> Positions:
        """Returns the next offsets after the steps that have begun, have not failed, and are not settled."""
        return {}

    def abandon(self) -> None:
        """Forgets all open steps: they are run again, here or by another worker."""

    def close(self) -> None:
        """Abandons all calls, and ends the threads that make them, if any."""

    def assigned(self) -> None:
        """Notes that the tasks are newly assigned, or rewound."""

    def committed(self) -> None:
        """Notes that everything is committed: steps before the ledger's offsets will not be run again."""
        if self.retries is not None:
            self.retries.committed(self._ledger.positions)
        if self._refused:
            at = self._ledger.positions
            self._refused = {
                read: refusal
                for read, refusal in self._refused.items()
                if all(at.get(TopicPartition(topic, number), 0) <= offset for topic, number, offset in read)
            }

    def replacement(self, output: Output, plan: Plan, mistake: RecordRefused) -> Output | RecordRefused | None:
        """Returns the dead letter to write in place of a refused output; in place of a dead letter, the least one.

        Without a dead-letter topic, returns the mistake, which then names the step's records. Returns None if the
        output belongs to no step of the plan.
        """
        if (owner := self._owner(output, plan)) is None:
            return None
        if self._failures.dead_letters is None:
            return self._failures.unreplaceable(mistake, owner)
        failure, least = self._failure(owner, mistake), output[TOPIC] == self._failures.dead_letters.topic
        if self._tracing is None:
            return self._failures.dead_letters.of(failure, least=least)
        with self._tracing.resume(output[HEADERS] or ()):
            return self._failures.dead_letters.of(failure, least=least)

    def _owner(self, output: Output, plan: Plan) -> Inputs | None:
        """Returns the inputs of an output's step; for equal outputs without a delivery hash, another step each time."""
        letters = self._failures.dead_letters
        if self._owned and (letters is None or output[TOPIC] != letters.topic):  # a dead letter always has the hash
            for at, (owner, each) in enumerate(zip(plan.owners, plan.outputs, strict=True)):
                if owner is not None and is_same(each, output):
                    plan.owners[at] = None
                    return owner
            return None
        digest = delivery_hash_of(output)
        steps: Sequence[Any] = plan.intake.steps
        read: Iterable[Inputs] = steps if self._joins else ((m,) for m in steps)
        return next((inputs for inputs in read if self._tasks.delivery_hash(inputs) == digest), None)
