"""The runner and the tasks: ready steps, their outputs, the offsets after them, the choices of an alts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest

from kstreams_py.errors import (
    Abortable,
    DecodeError,
    EncodeError,
    GraphError,
    KStreamsError,
    RecordTooLarge,
    SchemaError,
    Stop,
)
from kstreams_py.formats.serdes import Json, String, bind
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Output
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.tasks import BUFFER_LIMIT, Tasks
from kstreams_py.records import Headers, Message, Out, Positions, Step, TopicPartition
from kstreams_py.steps import outputs
from kstreams_py.steps.plan import Plan
from kstreams_py.testing import MemoryRegistry
from tests.tables import each_case
from tests.unit.fakes import Read
from tests.unit.processing import A0, A1, B0, B1, C0, START, Processing

UNTYPED: Any = Out
KINDS = ("map", "fork", "join", "join_fork", "alts", "alts_fork", "sink", "alts_sink")


class Bench:
    """A graph "g" with one processor "p", which starts at offset 0 everywhere."""

    def __init__(self, **graph: Any) -> None:
        self.graph = Graph("g", **graph)
        self.topics: dict[str, Topic] = {name: self.graph.topic(name) for name in "abcxy"}

    def processor(self, registry: MemoryRegistry | None = None, **options: Any) -> Processing:
        return Processing(self.graph, registry, **options)

    def map(self, function: Callable[..., Any], **options: Any) -> Processing:
        self.graph.map("a", to="x", id="p", **options)(function)
        return self.processor()

    def fork(self, function: Callable[..., Any], **options: Any) -> Processing:
        self.graph.map("a", to=["x", "y"], id="p", **options)(function)
        return self.processor()

    def join(self, function: Callable[..., Any], **options: Any) -> Processing:
        self.graph.join("a", "b", by="order", to="x", id="p", **options)(function)
        return self.processor()

    def alts(self, function: Callable[..., Any], **options: Any) -> Processing:
        self.graph.alts("a", "b", "c", to="x", id="p", **options)(function)
        return self.processor()


def digest(*messages: Message) -> bytes:
    """The delivery hash of the step that reads these messages."""
    if len(messages) == 1:
        (m,) = messages
        return hash_prefix("g.p", m.topic(), f"id-{m.topic()}", m.partition()) + pack_offset(m.offset())
    return joined_hash("g.p", [(m.topic(), f"id-{m.topic()}", m.partition(), m.offset()) for m in messages])


def output(
    topic: str, value: bytes | None, *read: Message, key: bytes | None = None, timestamp: int = 0, headers: Headers = ()
) -> Output:
    """The output of the step that read these messages."""
    place = [("ks-step", digest(read[0]))] if len(read) > 1 else []
    return (topic, value, key, -1, None, None, timestamp, [*headers, ("ks-hash", digest(*read)), *place])


def reads(topic: str, *values: bytes | None, partition: int = 0) -> list[Read]:
    """Records of these values, from offset 0 on."""
    return [Read(topic, offset, value, partition=partition) for offset, value in enumerate(values)]


def locate(steps: Sequence[Any]) -> list[Any]:
    """Topic and offset of each record of an intake."""
    return [locate(step) if isinstance(step, tuple) else (step.topic(), step.offset()) for step in steps]


def fail(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise error

    return function


def same(value: Any) -> Any:
    return value


def wrapped(value: Any) -> Out:
    return Out(value)


# The kinds.


def test_map_record_becomes_an_output_with_its_key_headers_and_timestamp() -> None:
    m = Read("a", 5, b"low", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=1_700)
    rig = Bench().map(lambda value: value.upper())
    assert rig.outcome(m) == (
        Plan(outputs=[output("x", b"LOW", m, key=b"k", timestamp=1_700, headers=[("h", b"1"), ("n", None)])], steps=1),
        {A0: 6},
    )


def test_map_that_returns_none_writes_nothing_and_advances_the_offset() -> None:
    assert Bench().map(lambda value: None).outcome(*reads("a", b"1", b"2")) == (Plan(steps=2), {A0: 2})


def test_map_tombstone_is_passed_as_none_without_decoding() -> None:
    bench, seen = Bench(), list[Any]()
    bench.graph.map(bench.graph.topic("json", value=Json()), to="x", id="p")(seen.append)
    rig = bench.processor(start={TopicPartition("json", 0): 0})
    rig.plan(*reads("json", None, b"[1]"))
    assert seen == [None, [1]]


def test_map_outputs_of_several_partitions_keep_the_order_of_arrival() -> None:
    rig = Bench().map(lambda value: value)
    m = [Read("a", 3, b"1", partition=1), Read("a", 8, b"2"), Read("a", 4, b"3", partition=1)]
    assert rig.outcome(*m) == (Plan(outputs=[output("x", each.value(), each) for each in m], steps=3), {A0: 9, A1: 5})


def test_fork_writes_each_value_to_the_topic_that_names_it() -> None:
    bench = Bench()
    results = iter([{bench.topics["x"]: b"1"}, {"y": b"2", "x": b"3"}, {"x": None}, None, {}])
    m = reads("a", b"", b"", b"", b"", b"")
    assert bench.fork(lambda value: next(results)).outcome(*m) == (
        Plan(outputs=[output("x", b"1", m[0]), output("y", b"2", m[1]), output("x", b"3", m[1])], steps=5),
        {A0: 5},
    )


def stop_message(plan: Plan) -> str:
    """Returns the message that stops the worker, without the line of the function."""
    return re.sub(r":\d+\)", ")", str(plan.interrupt))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (b"1", "processor 'p' has several outputs and returned a bytes: return a dict of topic to value, for x, y"),
        (Out(b"1"), "processor 'p' has several outputs and returned an Out: return a dict of topic to value, for x, y"),
        (
            {"x": b"1", "z": b"2"},
            "processor 'p' returned a value for 'z': its to= has x, y: name one of these, or add the topic there",
        ),
        (
            {3: b"1"},
            "processor 'p' returned a value for '3': its to= has x, y: name one of these, or add the topic there",
        ),
    ],
)
def test_fork_result_that_is_no_dict_of_its_outputs_stops_the_worker(result: Any, message: str) -> None:
    rig = Bench(errors="dead").fork(lambda value: result)
    plan = rig.plan(*reads("a", b""))
    assert (type(plan.interrupt), stop_message(plan)) == (
        GraphError,
        f"{message}; <lambda> (test_runner.py) read a[0]@0",
    )
    assert (plan.outputs, rig.ledger.uncommitted, plan.failures, plan.steps) == ([], {}, [], 0)


def test_join_takes_one_record_of_each_input_in_step() -> None:
    rig = Bench().join(lambda a, b: a + b)
    a = [Read("a", 0, b"1", key=b"ka", headers=[("h", b"a")], timestamp=20), Read("a", 1, b"2", timestamp=30)]
    b = [Read("b", 4, b"3", key=b"kb", headers=[("h", b"b")], timestamp=10), Read("b", 7, b"4", timestamp=40)]
    assert rig.outcome(*b, *a) == (
        Plan(
            outputs=[
                output("x", b"13", a[0], b[0], key=b"ka", timestamp=20, headers=[("h", b"a")]),
                output("x", b"24", a[1], b[1], timestamp=40),
            ],
            steps=2,
        ),
        {A0: 2, B0: 8},
    )


def test_join_pairs_only_records_of_the_same_partition_number() -> None:
    rig = Bench().join(lambda a, b: a + b)
    m = [Read("a", 0, b"1"), Read("b", 0, b"2", partition=1), Read("a", 0, b"3", partition=1), Read("b", 0, b"4")]
    assert locate(rig.intake(*m).steps) == [[("a", 0), ("b", 0)], [("a", 0), ("b", 0)]]
    rig.tasks.assign(START, {})
    assert [o[1] for o in rig.plan(*m).outputs] == [b"14", b"32"]


def test_join_leftovers_wait_for_the_other_input_and_are_not_committed() -> None:
    rig = Bench().join(lambda a, b: a + b)
    plan = rig.plan(*reads("a", b"1", b"2", b"3"), *reads("b", b"4"))
    assert (rig.ledger.uncommitted, rig.ledger.positions) == ({A0: 1, B0: 1}, START | {A0: 1, B0: 1})
    assert (rig.tasks.ready, rig.tasks.take(10)) == (False, None)
    plan = rig.plan(Read("b", 1, b"5"))
    assert ([o[1] for o in plan.outputs], rig.ledger.uncommitted) == ([b"25"], {A0: 2, B0: 2})


def test_join_fork_writes_to_several_topics() -> None:
    bench = Bench()
    bench.graph.join("a", "b", by="order", to=["x", "y"], id="p")(lambda a, b: {"x": a, "y": b})
    a, b = Read("a", 0, b"1"), Read("b", 0, b"2")
    assert bench.processor().plan(a, b).outputs == [output("x", b"1", a, b), output("y", b"2", a, b)]


def test_alts_takes_records_as_they_arrive_each_with_the_serde_of_its_topic() -> None:
    graph = Graph("g")
    topics = [graph.topic("a"), graph.topic("b", value=Json()), graph.topic("c", value=String())]
    graph.alts(*topics, to=graph.topic("x", value=Json()), id="p")(lambda value, step: [step.topic, str(value)])
    rig = Processing(graph)
    m = [Read("b", 0, b"[1]"), Read("a", 0, b"v"), Read("a", 1, b"v"), Read("c", 0, b"t"), Read("b", 1, b"2")]
    assert rig.outcome(*m) == (
        Plan(
            outputs=[
                output("x", data, each)
                for data, each in zip(
                    [b'["b","[1]"]', b'["a","b\'v\'"]', b'["a","b\'v\'"]', b'["c","t"]', b'["b","2"]'], m, strict=True
                )
            ],
            steps=5,
        ),
        {A0: 2, B0: 2, C0: 1},
    )


def test_alts_fork_writes_to_several_topics() -> None:
    bench = Bench()
    bench.graph.alts("a", "b", to=["x", "y"], id="p")(lambda value, step: {"x" if step.topic == "a" else "y": value})
    a, b = Read("a", 0, b"1"), Read("b", 0, b"2")
    assert bench.processor().plan(b, a).outputs == [output("y", b"2", b), output("x", b"1", a)]


@pytest.mark.parametrize("batch", [False, True])
def test_sink_function_is_called_and_its_result_is_ignored(batch: bool) -> None:
    calls: list[Any] = []

    def one(value: Any) -> Any:
        calls.append(value)
        return value

    def two(first: Any, second: Any) -> Any:
        calls.append((first, second))
        return {"anything": first}

    a, b = Read("a", 0, b"1"), Read("b", 0, b"2")
    cases: list[tuple[str, bool, Callable[..., Any], list[Message]]] = [
        ("a", False, one, [a]),
        ("ab", False, two, [a, b]),
        ("ab", True, one, [b, a]),
    ]
    for inputs, alts, function, messages in cases:
        bench = Bench(errors="dead")
        bench.graph.sink(*inputs, id="p", alts=alts, batch=batch)(function)
        rig = bench.processor()
        plan = rig.plan(*messages)
        assert (plan.outputs, plan.failures, len(rig.ledger.uncommitted)) == ([], [], len(messages))
    if batch:
        assert calls == [[b"1"], ([b"1"], [b"2"]), [b"2", b"1"]]
    else:
        assert calls == [b"1", (b"1", b"2"), b"2", b"1"]


# Steps, generators, Out and headers.


def test_step_is_passed_to_a_function_that_names_it_with_key_offsets_and_hash() -> None:
    graph, seen = Graph("g"), list[Step]()
    graph.map(graph.topic("a", key=Json()), to=graph.topic("x"), id="p")(lambda value, step: seen.append(step))
    rig = Processing(graph, start={A0: 0, A1: 0})
    m = Read("a", 5, key=b"[1]", headers=[("h", b"1")], timestamp=1_700, partition=1)
    rig.plan(m)
    (step,) = seen
    assert (step.topic, step.key, step.headers, step.timestamp, step.offsets_read, step.delivery_hash) == (
        "a", [1], [("h", b"1")], 1_700, (("a", 1, 5),), digest(m),
    )  # fmt: skip


def test_step_of_a_join_covers_all_its_inputs() -> None:
    seen: list[Step] = []
    a, b = Read("a", 1, key=b"k", timestamp=20), Read("b", 2, timestamp=30)
    Bench().join(lambda a, b, step: seen.append(step)).plan(a, b)
    (step,) = seen
    assert (step.key, step.timestamp, step.offsets_read, step.delivery_hash) == (
        b"k", 30, (("a", 0, 1), ("b", 0, 2)), digest(a, b),
    )  # fmt: skip


def test_generator_outputs_belong_to_one_step() -> None:
    def split(value: bytes) -> Iterator[Any]:
        yield from value.split()
        yield None
        yield Out(b"last", key=b"k")

    m = reads("a", b"1 2", b"")
    assert Bench().map(split).outcome(*m) == (
        Plan(
            outputs=[
                *(output("x", each, m[0]) for each in (b"1", b"2")),
                output("x", b"last", m[0], key=b"k"),
                output("x", b"last", m[1], key=b"k"),
            ],
            steps=2,
        ),
        {A0: 2},
    )


def test_generator_that_fails_half_way_writes_only_its_dead_letter() -> None:
    def half(value: bytes) -> Iterator[bytes]:
        yield value
        raise LookupError("half way")

    plan = Bench(errors="dead").map(half).plan(*reads("a", b"1"))
    assert [o[0] for o in plan.outputs] == ["dead"]


@each_case(
    ("out", "expected"),
    [
        (Out(b"w"), ("w", b"k", 1_700, [("h", b"1")])),
        (Out(None), (None, b"k", 1_700, [("h", b"1")])),
        (Out(b"w", key=b"other"), ("w", b"other", 1_700, [("h", b"1")])),
        (Out(b"w", key=None), ("w", None, 1_700, [("h", b"1")])),
        (Out(b"w", headers=[("i", None)]), ("w", b"k", 1_700, [("i", None)])),
        (Out(b"w", headers=[]), ("w", b"k", 1_700, [])),
        (Out(b"w", timestamp=5), ("w", b"k", 5, [("h", b"1")])),
        (Out(b"w", b"other", [("ks-hash", b"forged")], 1), ("w", b"other", 1, [])),
    ],
)
@each_case("kind", ["map", "fork"])
def test_out_sets_the_fields_it_is_given_and_keeps_the_others(kind: str, out: Out, expected: tuple[Any, ...]) -> None:
    m = Read("a", 0, key=b"k", headers=[("h", b"1")], timestamp=1_700)
    rig = Bench().map(lambda value: out) if kind == "map" else Bench().fork(lambda value: {"x": out})
    value, key, timestamp, headers = expected
    data = value if value is None else value.encode()
    assert rig.plan(m).outputs == [output("x", data, m, key=key, timestamp=timestamp, headers=headers)]


def test_out_is_encoded_by_the_serdes_of_its_topic() -> None:
    graph = Graph("g")
    x, y = graph.topic("x", key=Json(), value=Json()), graph.topic("y", key=String(), value=String())
    graph.map(graph.topic("a"), to=[x, y], id="p")(lambda value: {x: Out([1], key={"k": 2}), y: Out("t", key="k")})
    rig = Processing(graph, start={A0: 0})
    m = Read("a", 0)
    assert rig.plan(m).outputs == [output("x", b"[1]", m, key=b'{"k":2}'), output("y", b"t", m, key=b"k")]


def test_framework_headers_of_the_input_are_not_copied_to_the_output() -> None:
    own: Headers = [("ks-hash", b"0" * 16), ("ks-type", b"dead-letter"), ("ks-proc", b"g.q"), ("ks-error", b"E")]
    m = Read("a", 0, headers=[*own[:2], ("h", b"1"), *own[2:], ("h", b"2")])
    for rig in (Bench().map(same), Bench().map(wrapped)):
        assert rig.plan(m).outputs == [output("x", b"v", m, headers=[("h", b"1"), ("h", b"2")])]


@pytest.mark.parametrize("function", [same, wrapped])
def test_timestamp_of_a_record_that_has_none_is_left_to_the_producer(function: Callable[..., Any]) -> None:
    m = Read("a", 0, timestamp=None)
    assert Bench().map(function).plan(m).outputs == [output("x", b"v", m, timestamp=0)]


@pytest.mark.parametrize("function", [same, wrapped])
def test_timestamp_before_1970_is_kept_and_the_timestamp_0_refused(function: Callable[..., Any]) -> None:
    """librdkafka writes any timestamp but 0, which it replaces with the current time."""
    old, none = Read("a", 0, timestamp=-5), Read("a", 1, timestamp=0)
    plan = Bench().map(function).plan(old, none)
    assert plan.outputs == [output("x", b"v", old, timestamp=-5)]
    assert [(each.inputs, type(each.error)) for each in plan.failures] == [((none,), ValueError)]


def test_headers_that_a_function_changes_are_whole_for_its_next_attempt() -> None:
    seen = []

    def change(value: bytes, step: Step) -> bytes:
        seen.append([*step.headers])
        cast(list[Any], step.headers).clear()
        raise LookupError("no")

    m = Read("a", 0, headers=[("h", b"1")])
    rig = Bench(errors="dead").map(change)
    rig.plan(m)
    rig.plan(m)
    assert seen == [[("h", b"1")]] * 2
    assert m.headers() == [("h", b"1")]


def in_batch(values: list[bytes], steps: list[Step]) -> list[Any]:
    return [value + step.delivery_hash for value, step in zip(values, steps, strict=True)]


@pytest.mark.parametrize("how", ["map", "step", "batch", "alts", "fork", "out", "join"])
def test_outputs_without_the_hash_header_are_otherwise_the_same(how: str) -> None:
    """The function and the dead letters still have the hash itself."""

    def plan(*, hash_header: bool) -> Plan:
        bench = Bench(errors="dead", hash_header=hash_header)
        makers: Mapping[str, Callable[[], Processing]] = {
            "map": lambda: bench.map(lambda value: value + b""),
            "step": lambda: bench.map(lambda value, step: value + step.delivery_hash),
            "batch": lambda: bench.map(in_batch, batch=True),
            "alts": lambda: bench.alts(lambda value, step: value + step.delivery_hash),
            "fork": lambda: bench.fork(lambda value: {"x": value + b"", "y": value + b""}),
            "out": lambda: bench.map(lambda value: Out(value + b"")),
            "join": lambda: bench.join(lambda a, b, step: a + b + step.delivery_hash),
        }
        carried: Headers = [("ks-hash", b"0" * 16), ("mine", b"1")]
        return makers[how]().plan(
            Read("a", 0, b"1", headers=carried),
            Read("a", 1, b"2"),
            # a batch would make a dead letter of each of its records
            *([] if how == "batch" else [Read("a", 2, None)]),
            *(reads("b", b"3", b"4", b"5") if how in ("join", "alts") else []),
        )

    def without_hash(output: Output) -> Output:
        headers = [h for h in output[7] or [] if h[0] not in ("ks-hash", "ks-step")]
        return (*output[:7], headers) if output[0] != "dead" else output

    off, on = plan(hash_header=False), plan(hash_header=True)
    assert [(*o[:7], o[7] or []) for o in off.outputs] == [without_hash(o) for o in on.outputs]
    assert (off.dead_letters, off.steps) == (on.dead_letters, on.steps)
    assert {o[0] for o in off.outputs} >= {"x"} | ({"dead"} if how != "batch" else set())
    assert all(any(h[0] == "ks-hash" for h in o[7] or []) for o in on.outputs)


# Batches.


def test_batch_gets_a_list_and_returns_a_result_for_each() -> None:
    calls: list[Any] = []

    def double(values: list[bytes]) -> Sequence[Any]:
        calls.append(values)
        return tuple(None if value == b"-" else value * 2 for value in values)

    m = reads("a", b"1", b"-", b"3")
    assert Bench().map(double, batch=True).outcome(*m) == (
        Plan(outputs=[output("x", b"11", m[0]), output("x", b"33", m[2])], steps=3),
        {A0: 3},
    )
    assert calls == [[b"1", b"-", b"3"]]


def test_batch_of_a_join_gets_a_column_per_input_and_the_steps() -> None:
    seen: list[Any] = []

    def zipped(first: list[bytes], second: list[bytes], steps: list[Step]) -> list[bytes]:
        seen.extend([first, second, [step.delivery_hash for step in steps]])
        return [a + b for a, b in zip(first, second, strict=True)]

    a, b = reads("a", b"1", b"2"), reads("b", b"3", b"4")
    pairs = list(zip(a, b, strict=True))
    assert Bench().join(zipped, batch=True).outcome(*a, *b) == (
        Plan(outputs=[output("x", b"13", *pairs[0]), output("x", b"24", *pairs[1])], steps=2),
        {A0: 2, B0: 2},
    )
    assert seen == [[b"1", b"2"], [b"3", b"4"], [digest(*pair) for pair in pairs]]


def test_batch_that_returns_none_writes_nothing_and_advances_all_offsets() -> None:
    assert Bench().map(lambda values: None, batch=True).outcome(*reads("a", b"1", b"2")) == (Plan(steps=2), {A0: 2})


@pytest.mark.parametrize(("result", "kind"), [({b"a": 1, b"b": 2}, "dict"), (b"ab", "bytes"), ("ab", "str")])
def test_batch_result_that_is_no_list_is_not_taken_for_one(result: Any, kind: str) -> None:
    plan = Bench(errors="dead").map(lambda values: result, batch=True).plan(*reads("a", b"1", b"2"))
    remedy = "return a list with one result per record; <lambda> (test_runner.py) read a[0]@0"
    assert (stop_message(plan), plan.outputs) == (f"processor 'p' takes a batch and returned a {kind}: {remedy}", [])


def test_batch_result_of_another_length_stops_the_worker_and_writes_nothing() -> None:
    rig = Bench(errors="dead").map(lambda values: [b"1"], batch=True)
    plan = rig.plan(*reads("a", b"1", b"2"))
    remedy = "return one result per record, None for no output; <lambda> (test_runner.py) read a[0]@0"
    assert (type(plan.interrupt), stop_message(plan)) == (
        GraphError,
        f"processor 'p' returned 1 for a batch of 2: {remedy}",
    )
    assert (plan.outputs, rig.ledger.uncommitted, plan.failures, plan.steps) == ([], {}, [], 0)


def test_batch_exceptions_among_the_results_are_dead_letters_of_their_records() -> None:
    bench, error = Bench(errors="dead"), LookupError("no 2")
    m = reads("a", b"1", b"2", b"3")
    rig = bench.map(lambda values: [error if value == b"2" else value for value in values], batch=True)
    plan = rig.plan(*m)
    assert [(o[0], o[7][-1] if o[0] == "x" else o[7][0]) for o in plan.outputs if o[7]] == [
        ("x", ("ks-hash", digest(m[0]))),
        ("dead", ("ks-hash", digest(m[1]))),
        ("x", ("ks-hash", digest(m[2]))),
    ]
    assert [(f.inputs, f.delivery_hash, f.error) for f in plan.failures] == [((m[1],), digest(m[1]), error)]
    assert (rig.ledger.uncommitted, plan.steps) == ({A0: 3}, 3)


@pytest.mark.parametrize("results", [fail(LookupError("all")), lambda values: 3], ids=["raises", "no list"])
def test_batch_that_raises_makes_a_dead_letter_of_every_record(results: Callable[..., Any]) -> None:
    m = reads("a", b"1", b"2")
    rig = Bench(errors="dead").map(results, batch=True)
    plan = rig.plan(*m)
    assert [(o[0], (o[7] or [])[0][1]) for o in plan.outputs] == [("dead", digest(m[0])), ("dead", digest(m[1]))]
    assert (rig.ledger.uncommitted, plan.steps, plan.interrupt) == ({A0: 2}, 2, None)


def test_batch_without_the_records_that_do_not_decode_is_still_run() -> None:
    graph, calls = Graph("g", errors="dead"), list[Any]()
    graph.map(graph.topic("a", value=Json()), to=graph.topic("x"), id="p", batch=True)(calls.append)
    rig = Processing(graph, start={A0: 0})
    m = reads("a", b"1", b"{", b"3")
    plan = rig.plan(*m)
    assert calls == [[1, 3]]
    assert [(f.inputs, type(f.error)) for f in plan.failures] == [((m[1],), DecodeError)]
    assert ([o[0] for o in plan.outputs], rig.ledger.uncommitted, plan.steps) == (["dead"], {A0: 3}, 3)
    assert rig.outcome(Read("a", 3, b"{"))[1] == {A0: 4}
    assert calls == [[1, 3]]


@pytest.mark.parametrize(
    "function", [lambda values: [b"1", Stop("enough"), b"3"], fail(Stop("enough"))], ids=["among the results", "raised"]
)
def test_batch_interrupt_writes_nothing_of_the_batch(function: Callable[..., Any]) -> None:
    rig = Bench(errors="dead").map(function, batch=True)
    plan = rig.plan(*reads("a", b"1", b"2", b"3"))
    assert (type(plan.interrupt), str(plan.interrupt)) == (Stop, "enough")
    assert (plan.outputs, rig.ledger.uncommitted, plan.failures, plan.steps) == ([], {}, [], 0)
    assert rig.ledger.positions == START


# Intakes that run in parts.


def numbered_parts(value: bytes) -> Iterator[bytes]:
    """As many outputs as the value says."""
    for part in range(int(value)):
        yield value + b"." + str(part).encode()


def outputs_of(plan: Plan) -> list[bytes | None]:
    return [o[1] for o in plan.outputs]


@pytest.mark.parametrize("limit", ["OUTPUTS_MAX", "OUTPUT_BYTES"])
@pytest.mark.parametrize("kind", ["map", "alts", "join"])
def test_generator_outputs_over_the_limit_end_the_plan_and_the_rest_is_run_later(
    kind: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, limit, 5 if limit == "OUTPUTS_MAX" else 5 * len(b"3.0"))
    if kind == "join":
        rig = Bench().join(numbered_parts_of_first)
    else:
        rig = Bench().map(numbered_parts) if kind == "map" else Bench().alts(numbered_parts)
    # a join runs its tasks in the order of their partitions
    most, other = (A1, A0) if kind == "join" else (A0, A1)
    a = [
        *(Read("a", offset, value, partition=most.partition) for offset, value in enumerate((b"3", b"9", b"0", b"2"))),
        Read("a", 0, b"1", partition=other.partition),
    ]
    a.insert(1, a.pop())
    b = [Read("b", m.offset(), partition=m.partition()) for m in a] if kind == "join" else []
    of_b = {B0: 1, B1: 2} if b else {}
    first = rig.intake(*a, *b)
    rest = first.steps[3:]
    plan = rig.runner.run(first)
    order = [b"1.0", *parts(b"3"), *parts(b"9")] if b else [*parts(b"3"), b"1.0", *parts(b"9")]
    assert (outputs_of(plan), plan.steps) == (order, 3)  # the outputs of a step are never split
    assert rig.ledger.uncommitted == {most: 2, other: 1} | of_b
    assert rig.ledger.positions == START | rig.ledger.uncommitted
    rig.tasks.add([Read(topic, 4, b"1", partition=most.partition) for topic in ("ab" if b else "a")])
    rig.tasks.advance({other: 9})
    assert (rig.tasks.ready, rig.ledger.positions[other]) == (True, 1)
    left = rig.tasks.take(1)
    assert (left, rig.tasks.rest) == (Taken(rest, prepared=True), None)
    assert left is not None
    plan = rig.runner.run(left)
    assert (outputs_of(plan), plan.steps, rig.ledger.uncommitted[most]) == (parts(b"2"), 2, 4)
    following = rig.take(9)
    assert (following.prepared, following.positions()[most], list(following.choices)) == (
        False, 5, [0] if kind == "alts" else [],
    )  # fmt: skip


def numbered_parts_of_first(first: bytes, second: bytes) -> Iterator[bytes]:
    yield from numbered_parts(first)


def parts(value: bytes) -> list[bytes]:
    return list(numbered_parts(value))


def test_generator_outputs_below_the_limit_or_over_it_at_the_last_step_leave_no_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 5)
    rig = Bench().map(numbered_parts)
    assert rig.plan(Read("a", 0, b"4"), Read("a", 1, b"7")).steps == 2
    assert (rig.tasks.rest, rig.tasks.ready, rig.tasks.take(9)) == (None, False, None)


def test_generator_that_stops_the_worker_leaves_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 5)
    rig = Bench(stop_on=(ValueError,)).map(numbered_parts)
    assert rig.plan(Read("a", 0, b"6"), Read("a", 1, b"no"), Read("a", 2, b"1")).steps == 1
    left = rig.take(9)
    plan = rig.runner.run(left)
    assert (type(plan.interrupt), plan.steps, rig.ledger.uncommitted, plan.tried) == (ValueError, 0, {A0: 1}, {A0: 2})
    assert (rig.tasks.rest, rig.tasks.take(9), rig.ledger.positions[A0]) == (None, None, 1)


@pytest.mark.parametrize("forget", [Tasks.clear, lambda tasks: tasks.assign({}, {})], ids=["clear", "assign"])
def test_rest_of_an_intake_is_dropped_with_its_partitions(
    forget: Callable[[Tasks], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 1)
    rig = Bench().map(numbered_parts)
    rig.plan(*reads("a", b"1", b"1"))
    before = rig.tasks.rest
    assert before is not None
    forget(rig.tasks)
    assert (rig.tasks.rest, rig.tasks.ready, rig.tasks.take(9)) == (None, False, None)


def test_outputs_of_a_function_that_returns_one_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 1)
    monkeypatch.setattr(outputs, "OUTPUT_BYTES", 1)
    assert Bench().map(same).plan(*reads("a", b"1", b"2")).steps == 2
    assert Bench().map(lambda values: values, batch=True).plan(*reads("a", b"1", b"2")).steps == 2


# Failures, dead letters and interrupts.


@pytest.mark.parametrize("kind", ["map", "join"])
def test_exception_of_the_function_is_a_failure_and_the_other_steps_are_run(kind: str) -> None:
    error = LookupError("no 2")

    def raising(*values: bytes) -> bytes:
        if values[0] == b"2":
            raise error
        return values[0]

    steps: Sequence[tuple[Read, ...]]
    a, b = reads("a", b"1", b"2", b"3"), reads("b", b"", b"", b"")
    if kind == "map":
        rig, steps = Bench().map(raising), [(m,) for m in a]
    else:
        rig, steps = Bench().join(raising), [*zip(a, b, strict=True)]
    plan = rig.plan(*a, *b) if kind == "join" else rig.plan(*a)
    assert plan.outputs == [output("x", b"1", *steps[0]), output("x", b"3", *steps[2])]
    assert [(f.inputs, f.delivery_hash, f.error) for f in plan.failures] == [(steps[1], digest(*steps[1]), error)]
    assert (plan.steps, rig.ledger.uncommitted[A0]) == (3, 3)


def test_failure_text_has_the_error_the_offsets_and_the_delivery_hash() -> None:
    a, b = Read("a", 5, partition=1), Read("b", 7, partition=1)
    (failure,) = Bench().join(fail_two).plan(a, b).failures
    assert str(failure) == f"LookupError: 'two' (reading a[1]@5, b[1]@7, delivery {digest(a, b).hex()})"


def fail_two(first: bytes, second: bytes) -> None:
    raise LookupError("'two'")


def decode_dead_letter(bench: Bench, written: Output, registry: MemoryRegistry) -> Mapping[str, Any]:
    """The value of a dead letter, decoded."""
    assert written[1] is not None
    found: Mapping[str, Any] = bind(bench.graph.topics["dead"].value, registry, "dead-value").deserialize(written[1])
    return found


def test_dead_letter_has_the_undecoded_input_the_error_and_the_hash() -> None:
    bench, registry = Bench(errors="dead"), MemoryRegistry()
    bench.graph.join("a", "b", by="order", to="x", id="p")(fail_two)
    a = Read("a", 5, b"va", key=b"ka", headers=[("h", b"1"), ("n", None)], timestamp=1_700)
    b = Read("b", 7, None, timestamp=None)
    (written,) = bench.processor(registry).plan(a, b).outputs
    topic, _, key, partition, _, _, timestamp, headers = written
    assert (topic, key, partition, timestamp, headers) == ("dead", b"ka", -1, 1_700, [
        ("ks-hash", digest(a, b)), ("ks-type", b"dead-letter"), ("ks-proc", b"g.p"), ("ks-error", b"LookupError"),
        ("ks-step", digest(a)),
    ])  # fmt: skip
    read = dict(decode_dead_letter(bench, written, registry))
    trace = read.pop("traceback")
    first, place = trace.split("\n")[:2]
    assert (first, place.endswith(", in fail_two")) == ("Traceback (most recent call last):", True), "ours are left out"
    assert trace.endswith("in fail_two\n    raise LookupError(\"'two'\")\nLookupError: 'two'\n")
    assert read == {
        "processor": "g.p",
        "delivery_hash": digest(a, b),
        "exception_class": "builtins.LookupError",
        "exception_message": "'two'",
        "inputs": [
            {"topic": "a", "partition": 0, "offset": 5, "timestamp": 1_700, "key": b"ka", "value": b"va",
             "headers": [{"name": "h", "value": b"1"}, {"name": "n", "value": None}]},
            {"topic": "b", "partition": 0, "offset": 7, "timestamp": -1, "key": None, "value": None, "headers": []},
        ],
        "cut": None,
    }  # fmt: skip


@pytest.mark.parametrize(("limit", "kept"), [(None, 50_000), (10_000, 9_000)])
def test_dead_letter_is_cut_to_the_size_limit_of_its_topic(limit: int | None, kept: int) -> None:
    bench, registry = Bench(errors="dead"), MemoryRegistry()
    bench.graph.map("a", to="x", id="p")(fail(LookupError("no")))
    rig = bench.processor(registry, limit=limit)
    (written,) = rig.plan(Read("a", 0, b"v" * 50_000)).outputs
    (read,) = decode_dead_letter(bench, written, registry)["inputs"]
    assert kept <= len(read["value"]) <= (limit or kept)


def test_dead_letter_of_a_record_that_does_not_decode_has_its_raw_bytes() -> None:
    registry, called = MemoryRegistry(), list[Any]()
    bench = Bench(errors="dead")
    json = bench.graph.topic("json", value=Json())
    bench.graph.map(json, to="x", id="p")(called.append)
    rig = bench.processor(registry, start={TopicPartition("json", 0): 0})
    plan = rig.plan(Read("json", 0, b"\xff{"))
    (written,) = plan.outputs
    read = decode_dead_letter(bench, written, registry)
    assert (called, plan.interrupt, rig.ledger.uncommitted) == ([], None, {TopicPartition("json", 0): 1})
    assert (read["exception_class"], read["inputs"][0]["value"]) == ("kstreams_py.errors.DecodeError", b"\xff{")


@pytest.mark.parametrize("message", ["\ud800 is half a character", "long " * 10_000], ids=["surrogate", "long"])
def test_dead_letter_is_written_for_a_message_that_is_too_long_or_no_valid_text(message: str) -> None:
    bench, registry = Bench(errors="dead"), MemoryRegistry()
    bench.graph.map("a", to="x", id="p")(fail(LookupError(message)))
    (written,) = bench.processor(registry).plan(Read("a", 0)).outputs
    read = decode_dead_letter(bench, written, registry)
    assert read["exception_message"] == message.replace("\ud800", r"\ud800")[:4_000]
    assert len(read["traceback"]) <= 16_000
    assert read["traceback"].endswith(read["exception_message"][-1_000:] + "\n")


def test_dead_letter_is_written_for_an_exception_whose_str_raises() -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    rig = Bench(errors="dead").map(fail(Unshowable()))
    plan = rig.plan(*reads("a", b"1", b"2"))
    assert ([o[0] for o in plan.outputs], rig.ledger.uncommitted, plan.interrupt) == (["dead", "dead"], {A0: 2}, None)


def test_result_that_does_not_encode_is_a_dead_letter() -> None:
    m = reads("a", b"1", b"2")
    plan = Bench(errors="dead").map(lambda value: "text" if value == b"1" else value).plan(*m)
    assert ([o[0] for o in plan.outputs], plan.outputs[1]) == (["dead", "x"], output("x", b"2", m[1]))
    assert [type(failure.error) for failure in plan.failures] == [EncodeError]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (UNTYPED(b"w", key=3), "returned a value for x: its key: 3 (int) is not bytes"),
        (UNTYPED(b"w", headers=[("h", "text")]), "TypeError: header ('h', 'text') is not a name and bytes"),
        (UNTYPED(b"w", headers=[(b"h", b"")]), "TypeError: header (b'h', b'') is not a name and bytes"),
        (UNTYPED(b"w", headers=[("a\0b", b"")]), r"ValueError: header 'a\x00b': a name has no zero character"),
        (UNTYPED(b"w", headers=[("\udcff", b"")]), r"ValueError: header '\udcff': a name has no half of a surrogate"),
        (UNTYPED(b"w", headers=[("h",)]), "ValueError: not enough values to unpack"),
        (UNTYPED(b"w", headers=None), "TypeError: 'NoneType' object is not iterable"),
        (
            UNTYPED(b"w", headers={"h": b"1"}),
            "TypeError: headers are a dict: give pairs of a name and bytes, such as [",
        ),
        (UNTYPED(b"w", timestamp=-1), "ValueError: timestamp -1 is not a whole number of milliseconds after 1970"),
        (UNTYPED(b"w", timestamp=1 << 63), f"ValueError: timestamp {1 << 63} is not a whole number"),
        (UNTYPED(b"w", timestamp=1.5), "ValueError: timestamp 1.5 is not a whole number"),
    ],
)
def test_out_with_an_invalid_key_header_or_timestamp_is_a_dead_letter(out: Out, message: str) -> None:
    rig = Bench(errors="dead").map(lambda value: out)
    plan = rig.plan(Read("a", 0))
    assert ([o[0] for o in plan.outputs], rig.ledger.uncommitted) == (["dead"], {A0: 1})
    assert message in str(plan.failures[0])


class UserSerde:
    """A serde of the user; `result` computes what `serialize` returns."""

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def serialize(self, value: Any, /) -> Any:
        return value.encode() if self.result is None else self.result(value)

    def deserialize(self, data: bytes, /) -> str:
        return data.decode().upper()


@pytest.mark.parametrize(
    ("serde", "encoded"),
    [(UserSerde(), b"LOW"), (UserSerde(lambda value: None if value else b""), None), (UserSerde(str), "a dead letter")],
)
def test_serde_of_the_user_returns_bytes_or_none_or_its_step_is_a_dead_letter(serde: UserSerde, encoded: Any) -> None:
    graph = Graph("g", errors="dead")
    graph.map(graph.topic("a", value=serde), to=graph.topic("x", value=serde), id="p")(same)
    rig = Processing(graph, start={A0: 0})
    m = Read("a", 0, b"low")
    plan = rig.plan(m)
    if encoded == "a dead letter":
        assert ([o[0] for o in plan.outputs], [str(failure.error) for failure in plan.failures]) == (
            ["dead"], ["UserSerde.serialize returned a str: return bytes or None"],
        )  # fmt: skip
    else:
        assert plan.outputs == [output("x", encoded, m)]


@each_case(
    "error",
    [
        Stop("enough"),
        MemoryError("full"),
        SchemaError("unfit"),
        RecordTooLarge("big"),
        GraphError("no"),
        KeyError("k"),
        Abortable("the framework's own"),
    ],
)
@each_case("kind", ["map", "join"])
def test_interrupt_ends_the_plan_before_its_step(kind: str, error: Exception) -> None:
    def third(*values: bytes) -> bytes:
        if values[0] == b"3":
            raise error
        return values[0]

    bench = Bench(errors="dead", stop_on=(OSError, LookupError))
    a, b = reads("a", b"1", b"2", b"3", b"4"), reads("b", *[b""] * 4)
    if kind == "map":
        rig, messages = bench.map(third), a
    else:
        rig, messages = bench.join(third), a + b
    plan = rig.plan(*messages)
    assert plan.interrupt is error
    read = "a[0]@2, b[0]@2" if kind == "join" else "a[0]@2"
    where = [re.sub(r":\d+", "", each) for each in (*getattr(error, "__notes__", ()), *map(str, error.args))]
    is_named = not isinstance(error, KStreamsError) or type(error) is GraphError
    assert any(each.endswith(f"third (test_runner.py) read {read}") for each in where) == is_named
    assert ([o[1] for o in plan.outputs], plan.failures, plan.steps) == ([b"1", b"2"], [], 2)
    assert rig.ledger.uncommitted == ({A0: 2} if kind == "map" else {A0: 2, B0: 2})
    assert rig.ledger.positions == START | rig.ledger.uncommitted
    tried = {A0: 3} if kind == "map" else {A0: 3, B0: 3}
    assert plan.tried == ({} if isinstance(error, Stop) else tried)


@pytest.mark.parametrize(("error", "tried"), [(Stop(), {}), (MemoryError(), {A0: 2})])
def test_interrupt_of_a_batch_has_tried_all_of_it_unless_it_was_asked_to_stop(
    error: Exception, tried: Positions
) -> None:
    assert Bench().map(fail(error), batch=True).plan(*reads("a", b"1", b"2")) == Plan(interrupt=error, tried=tried)


def test_interrupt_at_the_first_record_commits_nothing() -> None:
    assert Bench().map(fail(Stop())).outcome(Read("a", 0))[1] == {}


def test_interrupt_keeps_the_positions_of_other_partitions_after_their_last_step() -> None:
    m = [Read("a", 0, b"1"), Read("a", 0, b"2", partition=1), Read("a", 1, b"-"), Read("a", 1, b"4", partition=1)]

    def stop(value: bytes) -> bytes:
        if value == b"-":
            raise Stop
        return value

    assert Bench().map(stop).outcome(*m)[1] == {A0: 1, A1: 1}


def test_exceptions_that_are_not_errors_pass_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        Bench(errors="dead").map(fail(KeyboardInterrupt())).plan(Read("a", 0))


# Positions.


def test_position_is_the_offset_after_the_last_record_across_gaps() -> None:
    rig = Bench().map(lambda value: value)
    taken = rig.intake(Read("a", 3), Read("a", 9), Read("a", 4, partition=1))
    rig.runner.run(taken)
    assert taken.positions() == rig.ledger.uncommitted == {A0: 10, A1: 5}


def test_positions_of_an_intake_of_a_join_cover_every_input() -> None:
    rig = Bench().join(lambda a, b: None)
    assert rig.intake(Read("a", 3), Read("b", 5), Read("a", 4)).positions() == {A0: 4, B0: 6}


def test_advance_passes_markers_once_all_records_before_them_are_processed() -> None:
    rig = Bench().map(lambda value: value)
    rig.tasks.add([Read("a", 0), Read("a", 0, partition=1)])
    ends = {A0: 3, A1: 1, B0: 0}
    rig.tasks.advance(ends)
    assert rig.ledger.positions == START, "the records before the markers are not processed yet"
    taken = rig.take(10)
    rig.runner.run(taken)
    for _ in range(2):
        rig.tasks.advance(ends)
        assert rig.ledger.positions == START | {A0: 3, A1: 1}


def test_advance_ignores_partitions_that_are_not_assigned() -> None:
    rig = Bench().map(lambda value: value)
    rig.tasks.assign({A0: 5}, {})
    rig.tasks.advance({A0: 5, A1: 9})
    assert rig.ledger.positions == {A0: 5}


def test_advance_stops_at_the_records_of_a_join_that_wait_for_another_input() -> None:
    rig = Bench().join(lambda a, b: None)
    rig.tasks.add([Read("a", 0), Read("a", 1), Read("a", 0, partition=1), Read("b", 0)])
    taken = rig.take(10)
    rig.runner.run(taken)
    rig.tasks.advance({A0: 5, A1: 5, B0: 4, B1: 2})
    assert rig.ledger.positions == {A0: 1, A1: 0, B0: 4, B1: 2, C0: 0}


def test_input_of_a_join_that_is_ahead_by_the_limit_is_paused() -> None:
    rig = Bench().join(lambda a, b: None)
    rig.tasks.add([Read("a", offset) for offset in range(BUFFER_LIMIT - 1)])
    rig.tasks.add([Read("b", offset, partition=1) for offset in range(BUFFER_LIMIT)])
    assert rig.tasks.paused == {B1}
    rig.tasks.add([Read("a", BUFFER_LIMIT - 1)])
    assert rig.tasks.paused == {A0, B1}
    rig.tasks.add([Read("b", 0)])
    assert (set(rig.tasks.paused), rig.tasks.ready) == ({B1}, True)


def test_take_returns_at_most_the_limit_and_the_rest_later_in_order() -> None:
    rig = Bench().map(lambda value: value)
    rig.tasks.add(reads("a", b"0", b"1", b"2"))
    rig.tasks.add([Read("a", 3)])
    taken = [rig.tasks.take(3), rig.tasks.take(3), rig.tasks.take(3)]
    assert [locate(each.steps) if each else None for each in taken] == [
        [("a", 0), ("a", 1), ("a", 2)],
        [("a", 3)],
        None,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_assign_and_clear_forget_records_positions_and_choices(kind: str) -> None:
    bench = Bench()
    function: Callable[..., Any] = lambda *_: None  # noqa: E731
    ends: Any = {"to": ["x", "y"] if kind.endswith("fork") else "x"} if "sink" not in kind else {}
    if kind == "alts_sink":
        bench.graph.sink("a", "b", id="p", alts=True)(function)
    elif kind in ("sink", "map", "fork"):
        (bench.graph.sink if kind == "sink" else bench.graph.map)("a", id="p", **ends)(function)
    else:
        declare: Any = bench.graph.alts if kind.startswith("alts") else partial(bench.graph.join, by="order")
        declare("a", "b", id="p", **ends)(function)
    rig = bench.processor()
    assert bench.graph.processors[0].kind == kind
    everything = [*reads("a", b"1", b"2"), Read("b", 0)]
    for forget in (rig.tasks.clear, lambda: rig.tasks.assign({}, {})):
        rig.tasks.assign(START, {0: Choices((("b", 3), ("a", 1)))} if "alts" in kind else {})
        rig.tasks.add(everything if kind not in ("map", "fork", "sink") else everything[:2])
        forget()
        left = (rig.ledger.positions, rig.tasks.ready, rig.tasks.take(9), rig.tasks.paused)
        assert left == ({}, False, None, frozenset())
        rig.tasks.assign(START, {})
        if "join" in kind:
            rig.tasks.add([Read("b", 1)])
            assert not rig.tasks.ready  # the record of `a` for the same step was dropped
        else:
            assert locate(rig.intake(Read("a", 2)).steps) == [("a", 2)]


# The choices of alts.


def chosen(*runs: tuple[str, int], **starts: int) -> Choices:
    """Choices of an alts of this bench; its inputs start at offset 0 unless `starts` names another."""
    topics = dict.fromkeys(topic for topic, _ in runs)
    return Choices(runs, tuple(InputStart(topic, f"id-{topic}", starts.get(topic, 0)) for topic in topics))


def test_alts_choices_are_the_runs_of_each_partition() -> None:
    rig = Bench().alts(lambda value: None)
    m = [Read("a", 4), Read("a", 7), Read("b", 0, partition=1), Read("b", 0), Read("a", 8), Read("a", 2, partition=1)]
    assert rig.intake(*m) == Taken(m, {0: chosen(("a", 7), ("b", 0), ("a", 8)), 1: chosen(("b", 0), ("a", 2))})


def test_alts_choices_cover_what_is_ready_and_not_yet_taken() -> None:
    rig = Bench().alts(lambda value: None)
    rig.tasks.add([Read("a", 0), Read("a", 1), Read("b", 0, partition=1), Read("b", 0)])
    taken = [rig.tasks.take(1), rig.tasks.take(2), rig.tasks.take(9)]
    assert [each.choices for each in taken if each] == [
        {0: chosen(("a", 1), ("b", 0))},
        {0: chosen(("a", 1), ("b", 0)), 1: chosen(("b", 0))},
        {0: chosen(("b", 0))},
    ]


def test_alts_choices_have_the_start_offset_of_each_input() -> None:
    rig = Bench().alts(lambda value: None)
    rig.tasks.assign(START | {A0: 3, B0: 5}, {0: Choices((("b", 7),))})
    rig.tasks.add([Read("a", 4), Read("b", 6), Read("b", 7), Read("c", 1)])
    first = rig.take(1)
    assert first.choices == {0: chosen(("b", 7), ("a", 4), ("c", 1), a=3, b=5)}
    assert first.starts() == {A0: 3, B0: 5, C0: 0}
    rig.runner.run(first)
    second = rig.take(9)
    assert second.choices == {0: chosen(("b", 7), ("a", 4), ("c", 1), a=3, b=7)}
    assert (second.starts(), second.positions()) == ({A0: 3, B0: 7, C0: 0}, {A0: 5, B0: 8, C0: 2})


def test_alts_choices_that_are_being_followed_are_saved_with_their_start_offsets() -> None:
    rig = assigned({0: chosen(("a", 1), ("c", 4), ("b", 2), b=1)}, {B0: 1})
    rig.tasks.add([Read("b", 1), Read("a", 0)])
    taken = rig.take(9)
    assert (locate(taken.steps), taken.choices) == (
        [("a", 0)],
        {0: chosen(("a", 0), ("a", 1), ("c", 4), ("b", 2), b=1)},
    )


def test_kinds_other_than_alts_have_no_choices() -> None:
    assert Bench().map(lambda value: None).intake(Read("a", 0)).choices == {}
    assert Bench().join(lambda a, b: None).intake(Read("a", 0), Read("b", 0)).choices == {}


def assigned(choices: Mapping[int, Choices], positions: Positions | None = None) -> Processing:
    rig = Bench().alts(lambda value: value)
    rig.tasks.assign(START | (positions or {}), choices)
    return rig


def test_alts_follows_saved_choices_though_another_input_is_ready_first() -> None:
    rig = assigned({0: Choices((("a", 1), ("b", 0), ("a", 2)))})
    rig.tasks.add([Read("c", 0), Read("b", 0), Read("b", 1)])
    assert (rig.tasks.ready, rig.tasks.take(9)) == (False, None)
    assert locate(rig.intake(*reads("a", b"", b"", b"", b"")).steps) == [
        ("a", 0), ("a", 1), ("b", 0), ("a", 2),
        ("a", 3), ("b", 1), ("c", 0),  # the records that waited, once the choices are used up
    ]  # fmt: skip
    assert locate(rig.intake(Read("c", 1), Read("a", 4)).steps) == [("c", 1), ("a", 4)]


def test_alts_follows_saved_choices_across_fetches_and_gaps() -> None:
    rig = assigned({0: Choices((("a", 5), ("b", 3), ("a", 9)))})
    assert locate(rig.intake(Read("a", 2)).steps) == [("a", 2)]
    assert locate(rig.intake(Read("b", 3), Read("a", 5), Read("a", 12)).steps) == [
        ("a", 5), ("b", 3),
        ("a", 12),  # no record up to 9 is left: the choices are used up
    ]  # fmt: skip


def test_alts_partition_without_choices_does_not_wait_for_another_partition() -> None:
    rig = assigned({0: Choices((("a", 0),))})
    free = [Read("b", 0, partition=1), Read("a", 0, partition=1)]
    assert locate(rig.intake(Read("b", 0), *free).steps) == [("b", 0), ("a", 0)]
    assert locate(rig.intake(Read("a", 0)).steps) == [("a", 0), ("b", 0)]


def test_alts_choices_that_were_delivered_are_not_followed() -> None:
    choices = {0: Choices((("a", 1), ("b", 4), ("a", 3)))}
    rig = assigned(choices, {A0: 2, B0: 3})
    assert locate(rig.intake(Read("a", 2), Read("a", 3), Read("b", 3), Read("b", 4)).steps) == [
        ("b", 3), ("b", 4), ("a", 2), ("a", 3),
    ]  # fmt: skip
    rig = assigned(choices, {A0: 4, B0: 5})
    assert locate(rig.intake(Read("c", 0), Read("a", 4)).steps) == [("c", 0), ("a", 4)]


def test_alts_choices_that_no_longer_apply_are_dropped_with_a_reason() -> None:
    bench = Bench()
    bench.graph.alts("a", "b", to="x", id="p")(same)
    rig = bench.processor()
    positions = {A0: 2, A1: 0, B0: 0, B1: 0}
    saved = {0: chosen(("a", 3), ("c", 0), ("a", 8), ("b", 1), a=2), 1: chosen(("a", 8), ("b", 1), a=1)}
    assert rig.tasks.assign(positions, saved) == [
        "partition 0: 'c' is no longer an input: choices saved for it are dropped",
        "partition 1: the committed offset of 'a' was set back from 1 to 0: choices saved for it are dropped",
    ]
    m = [Read("b", 0, partition=1), Read("a", 0, partition=1), Read("b", 0), Read("b", 1), Read("a", 2), Read("a", 8)]
    assert locate(rig.intake(*m).steps) == [("b", 0), ("a", 0), ("a", 2), ("a", 8), ("b", 0), ("b", 1)]
    assert rig.tasks.assign(positions, {0: chosen(("a", 3), a=2)}) == []


def test_alts_input_that_its_choices_hold_back_is_paused_at_the_limit() -> None:
    rig = assigned({0: Choices((("a", 0),))})
    rig.tasks.add([Read("b", offset) for offset in range(BUFFER_LIMIT)])
    assert rig.tasks.paused == {B0}
    rig.tasks.add([Read("a", 0)])
    assert rig.tasks.paused == frozenset()


def test_alts_choices_of_deleted_records_are_skipped_once_inputs_are_at_their_end() -> None:
    rig = assigned({0: Choices((("a", 1), ("b", 2), ("c", 5)))})
    assert locate(rig.intake(Read("c", 0), Read("a", 0)).steps) == [("a", 0)]
    rig.tasks.advance({A0: 1, B0: 9})
    assert (rig.ledger.uncommitted, rig.tasks.ready) == ({A0: 1, B0: 9}, False), (
        "a record of `a` at offset 1 may still arrive"
    )
    rig.tasks.advance({A0: 2, B0: 9, C0: 1})
    assert rig.ledger.uncommitted == {A0: 2, B0: 9}
    taken = rig.take(9)
    assert (locate(taken.steps), taken.choices) == ([("c", 0)], {0: chosen(("c", 0), ("c", 5))})
    assert locate(rig.intake(Read("c", 6), Read("a", 2)).steps) == [("a", 2), ("c", 6)]
    assert locate(rig.intake(Read("c", 7), Read("a", 3)).steps) == [("c", 7), ("a", 3)]


def test_alts_choices_that_are_followed_in_part_keep_the_rest_saved() -> None:
    saved = Choices((("b", 1), ("a", 0)))
    rig = assigned({0: saved})
    newest = rig.intake(Read("b", 0)).choices.get(0, saved)
    rig.tasks.assign(START, {0: newest})  # as after a crash before the commit
    assert locate(rig.intake(Read("a", 0), Read("b", 0), Read("b", 1)).steps) == [("b", 0), ("b", 1), ("a", 0)]
