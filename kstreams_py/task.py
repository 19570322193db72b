"""One processor's tasks: which records are ready, call the function, collect the outputs.

A task is one processor on one partition number; `Tasks` are those of one processor that one worker holds. Records go
in with `add`, come out as an `Intake` with `take`, and `run` turns an intake into a `Plan`, which engine/transaction.py
carries out. Nothing here reads a clock, waits or writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from kstreams_py.buffers import Buffers
from kstreams_py.dead_letter import Failure, Inputs, dead_letter
from kstreams_py.delivery import PROMISES, Choices, Output, Start, hash_prefix, joined_hash, pack_offset
from kstreams_py.errors import DecodeError, GraphError, KStreamsError, RecordRefused, Stop
from kstreams_py.record import HASH_HEADER, KEEP, Headers, Message, Out, Positions, Step, TopicPartition
from kstreams_py.serde import Avro, Bytes, Json, Registry, Serde, String, bind
from kstreams_py.topology import Processor, Topic

OWN_HEADERS: Final = frozenset({HASH_HEADER, "ks-type", "ks-proc", "ks-error"})
"""Headers that say something of the step that wrote the record; they are not passed through."""

OUTPUTS_MAX: Final = 10_000
OUTPUT_BYTES: Final = 16 << 20
"""Outputs of a generator, or bytes of their values, that are written before the next step of an intake is run."""


Place = tuple[tuple[str, int, int], ...]
"""Topic, partition and offset of each input of a step."""


@dataclass(slots=True)
class Intake:
    """Records about to be processed: one step each, or one step per tuple of a join.

    `choices` has, for each alts task, what it reads from here on; to be saved before the functions run. One that is
    `prepared` is the rest of another: what is to be saved for it was saved with that.
    """

    steps: Sequence[Message] | Sequence[Inputs]
    choices: dict[int, Choices] = field(default_factory=dict)
    prepared: bool = False

    def starts(self) -> Positions:
        """Where the inputs stand before this intake; with choices, all inputs that these are for."""
        first = {(s.topic, partition): s.offset for partition, chosen in self.choices.items() for s in chosen.starts}
        for m in self._messages():
            first.setdefault((m.topic(), m.partition()), m.offset())
        return {TopicPartition(*tp): offset for tp, offset in first.items()}

    def positions(self) -> Positions:
        """Where the inputs stand after this intake."""
        last: dict[tuple[str, int], int] = {}
        for m in self._messages():
            last[m.topic(), m.partition()] = m.offset()
        return {TopicPartition(*tp): offset + 1 for tp, offset in last.items()}

    def _messages(self) -> Iterable[Message]:
        steps: Any = self.steps
        return chain.from_iterable(steps) if steps and isinstance(steps[0], tuple) else steps


@dataclass(slots=True)
class Plan:
    """What an intake came to: outputs (dead letters among them) to write, positions to commit with them.

    `failures` are to be logged; `letters` counts the dead letters, `records` the steps that are done. With `interrupt`,
    the step at the positions raised something that stops the worker: carry out the plan, commit, then raise it; `tried`
    are the positions after that step, unless what it raised was Stop: then it has not been tried.
    """

    outputs: list[Output] = field(default_factory=list)
    positions: Positions = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    letters: int = 0
    interrupt: Exception | None = None
    tried: Positions = field(default_factory=dict)
    records: int = 0
    owners: list[Inputs] = field(default_factory=list)
    """Whose each output is, where that is asked for."""

    def add(self, later: Plan) -> None:
        """Adds what the steps after these came to."""
        self.outputs += later.outputs
        self.positions.update(later.positions)
        self.failures += later.failures
        self.letters += later.letters
        self.interrupt, self.tried = later.interrupt, later.tried
        self.records += later.records


class Tasks:
    """The tasks of one processor that one worker holds: positions, buffers, and the way from record to output."""

    def __init__(
        self,
        processor: Processor,
        *,
        name: str,
        registry: Registry,
        topic_ids: Mapping[str, str],
        dead_letters: Topic | None,
        dead_letter_bytes: int | None = None,
    ) -> None:
        """`dead_letter_bytes` is what the dead-letter topic takes, see dead_letter(); None if it takes any size."""
        self.processor = processor
        self.name = name
        self.positions: Positions = {}
        self._topic_ids = topic_ids
        self._inputs = [topic.name for topic in processor.inputs]
        self._to = [topic.name for topic in processor.outputs]
        self._joins = processor.joins
        self._refused: dict[Place, RecordRefused] = {}
        self._owned = PROMISES[processor.guarantee].saves_first and not processor.hash_header
        """A refused output is traced to its step by the delivery hash, or, without that, by keeping owners."""
        self._reached: Mapping[Any, Any] = {}
        """Of the intake that is run: the last offsets read, as far as it has come."""
        self._ready: list[Any] = []
        self.rest: Intake | None = None
        """What was not run of an intake because its outputs became many: `take` gives it next.

        Its positions may be saved already: it must be run, or given back, before the worker stops.
        """
        self._buffers = Buffers(self._inputs, joins=self._joins)
        self._prefixes: dict[str, dict[int, bytes]] = {}
        self._stops: tuple[type[BaseException], ...] = (Stop, MemoryError, *processor.unhandled_exceptions)
        self._decode = {t.name: _decoder(bind(t.value, registry, f"{t.name}-value")) for t in processor.inputs}
        self._decode_key = {t.name: _decoder(bind(t.key, registry, f"{t.name}-key")) for t in processor.inputs}
        self._encode = {t.name: _encoder(t.value, registry, f"{t.name}-value") for t in processor.outputs}
        self._encode_key = {t.name: _encoder(t.key, registry, f"{t.name}-key") for t in processor.outputs}
        self._emit: Callable[[Message, Any, bytes], Output] | None = None
        """One output as `_output` would make it, for results that are plain values for the one topic there is."""
        if len(self._to) == 1:
            self._emit = _emitter(self._to[0], *self._encode[self._to[0]], hashed=processor.hash_header)
        self._dead_letters = dead_letters
        self._dead_letter_bytes = dead_letter_bytes
        if dead_letters is not None:
            self._encode_dead = _encoder(dead_letters.value, registry, f"{dead_letters.name}-value")[0]
        self._run: Callable[[Any, Plan], None] = (
            self._run_batch
            if processor.batch
            else self._run_counted
            if self._joins or processor.generator
            else self._run_records
        )

    # What comes in.

    def assign(self, positions: Positions, choices: Mapping[int, Choices]) -> list[str]:
        """Starts anew at these positions; alts tasks follow what is left of their choices first.

        Returns the reasons for choices that are not followed, each with its partition: a person should know.
        """
        self.clear()
        self.positions = dict(positions)
        for topic, partition in positions:
            by_partition = self._prefixes.setdefault(topic, {})
            by_partition[partition] = hash_prefix(self.name, topic, self._topic_ids[topic], partition)
        dropped, ids = [], {topic: self._topic_ids[topic] for topic in self._inputs if topic in self._topic_ids}
        for partition, chosen in choices.items():
            committed = {tp.topic: offset for tp, offset in positions.items() if tp.partition == partition}
            left, reasons = chosen.still_valid(committed, ids)
            dropped += [f"partition {partition}: {reason}: choices saved for it are dropped" for reason in reasons]
            if left.runs:
                self._buffers.scripts[partition] = deque(left.runs)
        return dropped

    def clear(self) -> None:
        """Forgets positions and records: the partitions are no longer ours."""
        self.positions = {}
        self._ready = []
        self.rest = None
        self._buffers = Buffers(self._inputs, joins=self._joins)
        self._prefixes = {}

    def add(self, messages: Sequence[Message]) -> None:
        """Takes records in, each partition's in order."""
        if not self._joins and not self._buffers.scripts:
            self._ready = [*self._ready, *messages] if self._ready else list(messages)
        else:
            self._ready += self._buffers.add(messages)

    @property
    def progress(self) -> str:
        """Changes with each step that is run; for another thread to look at."""
        try:
            return str(self._reached)
        except RuntimeError:  # it was changed meanwhile
            return ""

    @property
    def ready(self) -> bool:
        """A step could be taken."""
        return self.rest is not None or bool(self._ready)

    @property
    def waiting(self) -> frozenset[TopicPartition]:
        """Partitions of which so much waits for other inputs that they should be paused."""
        return self._buffers.paused

    @property
    def room(self) -> int:
        """How many records to take in at once, so that what waits for other inputs stays within its bytes."""
        return self._buffers.room

    def advance(self, ends: Positions) -> Positions:
        """Moves positions past what holds no records (transaction markers) where all before it was processed."""
        if self.ready:
            return {}
        moved = {
            tp: end for tp, end in ends.items() if end > self.positions.get(tp, end) and not self._buffers.holds(tp)
        }
        self.positions.update(moved)
        self._ready += self._buffers.skip(ends)
        return moved

    def take(self, limit: int) -> Intake | None:
        """Up to `limit` steps that are ready, or all the rest of those taken before; None if none is."""
        if (rest := self.rest) is not None:
            self.rest = None
            return rest
        if not self._ready:
            return None
        steps, self._ready = self._ready[:limit], self._ready[limit:]
        return Intake(steps, self._choices(steps) if self.processor.kind.is_alts else {})

    def _choices(self, steps: Sequence[Message]) -> dict[int, Choices]:
        """Per task in `steps`, all that it is known to read from here on, as chosen now or at an earlier attempt."""
        runs: dict[int, list[tuple[str, int]]] = {m.partition(): [] for m in steps}
        for m in (*steps, *self._ready):
            if (chosen := runs.get(m.partition())) is not None:
                if chosen and chosen[-1][0] == m.topic():
                    chosen.pop()
                chosen.append((m.topic(), m.offset()))
        return {
            partition: self._as_chosen(partition, (*chosen, *self._buffers.scripts.get(partition, ())))
            for partition, chosen in runs.items()
        }

    def _as_chosen(self, partition: int, runs: tuple[tuple[str, int], ...]) -> Choices:
        """The runs with the inputs that they are for, as they are now."""
        topics = dict.fromkeys(topic for topic, _ in runs)
        starts = [Start(t, self._topic_ids[t], self.positions[TopicPartition(t, partition)]) for t in topics]
        return Choices(runs, tuple(starts))

    # What comes out.

    def run(self, intake: Intake) -> Plan:
        """Calls the function for each step. The positions in the plan are those after the last step that is done.

        Once there are OUTPUTS_MAX outputs, or OUTPUT_BYTES in them, the other steps are left for the next `take`.
        """
        apart = self._refused or self._owned
        plan = self._run_apart(intake.steps) if apart else self._run_together(intake)
        if plan.interrupt is None and plan.records < len(intake.steps):
            self.rest = Intake(intake.steps[plan.records :], prepared=True)
        self.positions.update(plan.positions)
        return plan

    def _run_together(self, intake: Intake) -> Plan:
        plan = Plan()
        self._run(intake.steps, plan)
        if plan.interrupt is not None and self.processor.batch:
            tried = {} if isinstance(plan.interrupt, Stop) else intake.positions()
            plan = Plan(interrupt=plan.interrupt, tried=tried)  # a batch is done as a whole or not at all
        return plan

    def _run_apart(self, steps: Sequence[Any]) -> Plan:
        """Step by step, so that it is known which outputs are whose; a dead letter for those that were refused."""
        whole, size = Plan(), 0
        for step in steps:
            inputs = step if self._joins else (step,)
            if (mistake := self._refused.get(_place(inputs))) is None:
                plan = self._run_together(Intake([step]))
            else:
                plan = Plan(positions=Intake([step]).positions(), records=1)
                self._bury(inputs, mistake, plan)
            whole.add(plan)
            if whole.interrupt is not None:
                break
            whole.owners += [inputs] * len(plan.outputs)
            size += _bytes(plan.outputs)
            if _are_many(whole.outputs, size):
                break
        return whole

    # Outputs that a topic refuses.

    def refuse(self, intake: Intake, mistake: RecordRefused) -> None:
        """From now on the only step of an intake comes to a dead letter. Raises the mistake if it did so already."""
        step: Any = intake.steps[0]
        place = _place(step if self._joins else (step,))
        if place in self._refused:
            raise mistake
        self._refused[place] = mistake

    def committed(self) -> None:
        """All positions are committed: refused steps among them will not be run again."""
        if self._refused:
            self._refused = {
                place: mistake
                for place, mistake in self._refused.items()
                if all(self.positions.get(TopicPartition(t, p), 0) <= offset for t, p, offset in place)
            }

    def replacement(self, output: Output, intake: Intake, plan: Plan, mistake: RecordRefused) -> Output | None:
        """The dead letter to write in place of a refused output of a plan; None if it is no output of a step of it."""
        if self._dead_letters is None or output[0] == self._dead_letters.name:
            return None
        if self._owned:
            owners = [inputs for inputs, each in zip(plan.owners, plan.outputs, strict=True) if _same(each, output)]
        else:
            digest = dict(output[7] or ()).get(HASH_HEADER)
            steps: Sequence[Any] = intake.steps
            owners = [i for i in (steps if self._joins else ((m,) for m in steps)) if self._digest(i) == digest]
        if not owners:
            return None
        return self._dead_letter(Failure(owners[0], self._digest(owners[0]), mistake))

    def _run_records(self, messages: Sequence[Message], plan: Plan) -> None:
        """One record a step. The hot loop: nothing is computed here that is neither asked for nor sent."""
        processor = self.processor
        function, wants_step, alts = processor.function, processor.wants_step, processor.kind.is_alts
        sink, emit, hashed = not self._to, self._emit, wants_step or (processor.hash_header and bool(self._to))
        topic = processor.inputs[0].name
        prefixes, decode, reached = self._prefixes.get(topic, {}), self._decode[topic], dict[int, int]()
        reached_by_topic = self._reached = {topic: reached}
        append = plan.outputs.append
        digest = b""
        for m in messages:
            if alts and m.topic() != topic:
                topic = m.topic()
                prefixes, decode = self._prefixes[topic], self._decode[topic]
                reached = reached_by_topic.setdefault(topic, {})
            partition, offset = m.partition(), m.offset()
            if hashed:
                digest = prefixes[partition] + pack_offset(offset)
            try:
                value = m.value()
                if decode is not None and value is not None:
                    value = decode(value)
                result = function(value, Step((m,), digest, self._decode_key[topic])) if wants_step else function(value)
                if result is None or sink:
                    pass
                elif emit is not None and type(result) is not Out:
                    append(emit(m, result, digest))
                else:
                    plan.outputs += self._outputs(result, (m,), digest)
            except Exception as error:
                if not self._handle((m,), error, plan):
                    plan.records = next(i for i, seen in enumerate(messages) if seen is m)
                    break
            reached[partition] = offset
        else:
            plan.records = len(messages)
        for of_topic, offsets in reached_by_topic.items():
            plan.positions.update({TopicPartition(of_topic, p): offset + 1 for p, offset in offsets.items()})

    def _run_counted(self, steps: Sequence[Any], plan: Plan) -> None:
        """A tuple of records a step, until the outputs are many: of joins, and of generators."""
        processor, size = self.processor, 0
        reached: dict[tuple[str, int], int] = {}
        self._reached = reached
        for step in steps:
            inputs: Inputs = step if self._joins else (step,)
            digest = self._hash(inputs)
            try:
                values = [self._value(m) for m in inputs]
                if processor.wants_step:
                    values.append(Step(inputs, digest, self._decode_key[inputs[0].topic()]))
                result = processor.function(*values)
                if self._to:
                    outputs = self._outputs(result, inputs, digest)
                    plan.outputs += outputs
                    size += _bytes(outputs)
            except Exception as error:
                if not self._handle(inputs, error, plan):
                    break
            plan.records += 1
            for m in inputs:
                reached[m.topic(), m.partition()] = m.offset()
            if _are_many(plan.outputs, size):
                break
        plan.positions = {TopicPartition(*tp): offset + 1 for tp, offset in reached.items()}

    def _run_batch(self, steps: Sequence[Message] | Sequence[Inputs], plan: Plan) -> None:
        """All steps in one call: a list of values per input in, one result per step out, exceptions among them.

        If the function raises, no step can be told from the others: all of them are dead letters, each with its hash.
        """
        batch, columns = self._columns(steps, plan)
        emit, append, one, hashed = self._emit, plan.outputs.append, not self._joins, self.processor.hash_header
        digest = b""
        for step, result in zip(batch, self._call_batch(batch, columns), strict=True):
            try:
                if isinstance(result, Exception):
                    raise result
                if result is None or not self._to:
                    continue
                if emit is not None and one and type(result) is not Out:
                    if hashed:
                        digest = self._prefixes[step.topic()][step.partition()] + pack_offset(step.offset())
                    append(emit(step, result, digest))
                else:
                    inputs = (step,) if one else step
                    plan.outputs += self._outputs(result, inputs, self._hash(inputs))
            except Exception as error:
                self._handle((step,) if one else step, error, plan)
        plan.positions, plan.records = Intake(steps).positions(), len(steps)

    def _columns(self, steps: Sequence[Any], plan: Plan) -> tuple[Sequence[Any], list[list[Any]]]:
        """The steps whose values could be decoded, and these values in a list for each input."""
        if not self._joins and not any(self._decode.values()):
            return steps, [[m.value() for m in steps]]
        batch, rows = [], []
        for step in steps:
            inputs = step if self._joins else (step,)
            try:
                rows.append([self._value(m) for m in inputs])
                batch.append(step)
            except Exception as error:
                self._handle(inputs, error, plan)
        return batch, [list(column) for column in zip(*rows, strict=True)]

    def _call_batch(self, batch: Sequence[Any], columns: list[list[Any]]) -> Sequence[Any]:
        """One result per step; the function's exception, if it raised, for each."""
        if not batch:
            return []
        if self.processor.wants_step:
            of_step = [step if self._joins else (step,) for step in batch]
            columns.append([Step(i, self._hash(i), self._decode_key[i[0].topic()]) for i in of_step])
        try:
            results = self.processor.function(*columns)
            if results is None:
                return [None] * len(batch)
            if len(results) != len(batch):
                raise GraphError(
                    f"processor {self.processor.id!r} returned {len(results)} results for a batch of {len(batch)}: "
                    "return one result per record, None for none"
                )
        except Exception as error:
            return [error] * len(batch)
        return list(results)

    def _hash(self, inputs: Inputs) -> bytes:
        if len(inputs) == 1:
            m = inputs[0]
            return self._prefixes[m.topic()][m.partition()] + pack_offset(m.offset())
        return joined_hash(
            self.name, ((m.topic(), self._topic_ids[m.topic()], m.partition(), m.offset()) for m in inputs)
        )

    def _digest(self, inputs: Inputs) -> bytes:
        """As `_hash`, of partitions that may not be held any more."""
        if len(inputs) > 1:
            return self._hash(inputs)
        (m,) = inputs
        return hash_prefix(self.name, m.topic(), self._topic_ids[m.topic()], m.partition()) + pack_offset(m.offset())

    def _value(self, m: Message) -> Any:
        value, decode = m.value(), self._decode[m.topic()]
        return value if decode is None or value is None else decode(value)

    def _outputs(self, result: Any, inputs: Inputs, digest: bytes) -> list[Output]:
        """All outputs of one step, or an exception and none."""
        results = result if self.processor.generator else (result,)
        if (emit := self._emit) is not None and len(inputs) == 1:
            (m,), (topic,) = inputs, self._to
            return [
                self._output(topic, each, inputs, digest) if type(each) is Out else emit(m, each, digest)
                for each in results
                if each is not None
            ]
        return [
            self._output(topic, value, inputs, digest)
            for each in results
            if each is not None
            for topic, value in self._addressed(each)
            if value is not None
        ]

    def _addressed(self, result: Any) -> Iterable[tuple[str, Any]]:
        """(topic, value) pairs of a result: with several outputs it names the topic of each."""
        if len(self._to) == 1:
            return ((self._to[0], result),)
        if not isinstance(result, Mapping):
            raise GraphError(
                f"processor {self.processor.id!r} has several outputs and returned a {type(result).__name__}: "
                "return a dict of topic to value"
            )
        named = {str(getattr(topic, "name", topic)): value for topic, value in result.items()}
        if unknown := [topic for topic in named if topic not in self._encode]:
            raise GraphError(f"processor {self.processor.id!r} returned a value for {unknown[0]!r}: add it to its `to`")
        return named.items()

    def _output(self, topic: str, value: Any, inputs: Inputs, digest: bytes) -> Output:
        """One output: key, headers and timestamp as on the (first) input, but what an `Out` sets."""
        lead = inputs[0]
        out = value if isinstance(value, Out) else Out(value)
        data = None if out.value is None else self._encode[topic][0](out.value)
        key = lead.key() if out.key is KEEP else None if out.key is None else self._encode_key[topic][0](out.key)
        headers = _carry((lead.headers() or []) if out.headers is KEEP else _headers(out.headers))
        if self.processor.hash_header:
            headers.append((HASH_HEADER, digest))
        latest = max(m.timestamp()[1] for m in inputs)
        timestamp = latest if out.timestamp is KEEP else _timestamp(out.timestamp)
        return (topic, data, key, -1, None, None, max(timestamp, 0), headers)

    def _handle(self, inputs: Inputs, error: Exception, plan: Plan) -> bool:
        """Writes a dead letter; False if the exception is one that stops the worker instead."""
        if isinstance(error, self._stops) or (isinstance(error, KStreamsError) and not isinstance(error, DecodeError)):
            plan.interrupt = error
            plan.tried = {} if isinstance(error, Stop) else Intake([inputs]).positions()
            return False
        self._bury(inputs, error, plan)
        return True

    def _bury(self, inputs: Inputs, error: Exception, plan: Plan) -> None:
        """Writes the dead letter of a step."""
        failure = Failure(inputs, self._hash(inputs), error)
        plan.failures.append(failure)
        if self._dead_letters is not None:
            plan.outputs.append(self._dead_letter(failure))
            plan.letters += 1

    def _dead_letter(self, failure: Failure) -> Output:
        assert self._dead_letters is not None
        topic, encode = self._dead_letters.name, self._encode_dead
        return dead_letter(failure, self.name, topic, encode, self._dead_letter_bytes)


def _bytes(outputs: Sequence[Output]) -> int:
    """Of their values."""
    size = 0
    for output in outputs:
        size += len(output[1] or b"")
    return size


def _are_many(outputs: Sequence[Output], size: int) -> bool:
    return size >= OUTPUT_BYTES or len(outputs) >= OUTPUTS_MAX


def _place(inputs: Inputs) -> Place:
    return tuple((m.topic(), m.partition(), m.offset()) for m in inputs)


def _same(one: Output, other: Output) -> bool:
    """Whether two outputs are the same record; a client that gives one back has chosen its partition."""
    return one[:3] == other[:3] and list(one[7] or ()) == list(other[7] or ())


def _emitter(
    topic: str, encode: Callable[[Any], bytes | None], identity: bool, *, hashed: bool
) -> Callable[[Message, Any, bytes], Output]:
    """Makes the output of one record and its result; called for each record, so nothing is looked up in it."""

    def emit(m: Message, result: Any, digest: bytes) -> Output:
        headers: Headers | None
        if (carried := m.headers()) is None:
            headers = [(HASH_HEADER, digest)] if hashed else None
        else:
            headers = _carry(carried)
            if hashed:
                headers.append((HASH_HEADER, digest))
        at = m.timestamp()[1]
        data = result if identity and type(result) is bytes else encode(result)
        return (topic, data, m.key(), -1, None, None, at if at > 0 else 0, headers)  # noqa: FURB136, a call costs more

    return emit


def _carry(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The input's headers for the output: without those of the step that wrote the input."""
    return [header for header in headers if header[0] not in OWN_HEADERS]


def _decoder(serde: Serde) -> Callable[[bytes], Any] | None:
    """None where decoding changes nothing, so that the loops need not call."""
    return None if getattr(serde, "identity", False) else serde.deserialize


def _encoder(serde: Serde, registry: Registry, subject: str) -> tuple[Callable[[Any], bytes | None], bool]:
    """How to encode, and whether encoding bytes changes nothing."""
    serialize = bind(serde, registry, subject).serialize
    if isinstance(serde, Bytes | String | Json | Avro):
        return serialize, isinstance(serde, Bytes)

    def checked(value: Any) -> bytes | None:
        data = serialize(value)
        if data is not None and not isinstance(data, bytes):
            raise TypeError(f"{type(serde).__name__}.serialize returned a {type(data).__name__}: return bytes or None")
        return data

    return checked, False


def _headers(headers: Any) -> Headers:
    """What a function gave as headers, if it is pairs of a name and bytes."""
    pairs = [(name, value) for name, value in headers]
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise TypeError(f"header ({name!r}, {value!r}) is not a name and bytes")
    return pairs


def _timestamp(timestamp: Any) -> int:
    """What a function gave as timestamp, if it is milliseconds since 1970."""
    if not isinstance(timestamp, int) or not 0 <= timestamp < 1 << 63:
        raise ValueError(f"timestamp {timestamp!r} is not a whole number of milliseconds since 1970")
    return timestamp
