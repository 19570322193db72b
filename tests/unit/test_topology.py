"""topology.py: inferred kinds and signatures, refusals of invalid graphs with their messages, describe()."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

import pytest

from kstreams_py.errors import GraphError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.serdes import Bytes, Json, String
from kstreams_py.graph.declarations import Processor, ProcessorKind, Topic, dead_letters, show_serde
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.topology import Graph
from tests.tables import each_case


def one(value: Any) -> Any:
    return value


def two(left: Any, right: Any) -> Any:
    return left, right


class Plain:
    """A user's serde without a repr of its own."""

    def serialize(self, value: Any, /) -> bytes:
        return bytes(value)

    def deserialize(self, data: bytes, /) -> Any:
        return data


def abc(**options: Any) -> tuple[Graph, Topic, Topic, Topic]:
    """A graph with three topics."""
    graph = Graph("app", **options)
    return graph, graph.topic("a"), graph.topic("b"), graph.topic("c")


# Declarations.


def test_topic_without_settings_is_bytes_and_leaves_creation_to_the_broker() -> None:
    topic = Graph("app").topic("a")
    assert (topic.name, topic.key, topic.value) == ("a", Bytes(), Bytes())
    assert (topic.partitions, topic.replication, topic.config) == (None, None, {})
    assert str(topic) == "a"


def test_topics_that_declare_no_serdes_have_those_of_their_graph() -> None:
    graph = Graph("app", key=String(), value=Json(), errors="dead")
    topics: list[Topic] = [
        graph.topic("a"),
        graph.topic("b", key=Bytes()),
        graph.topic("c", value=String()),
        graph.topic("dead"),
        graph.topics["dead"],
    ]
    assert [(topic.key, topic.value) for topic in topics] == [
        (String(), Json()),
        (Bytes(), Json()),
        (String(), String()),
        (Bytes(), dead_letters()),
        (Bytes(), dead_letters()),
    ]
    assert graph.topic("a", key=String(), value=Json()) is topics[0]


def test_topic_settings_are_text_as_the_broker_returns_them() -> None:
    topic = Graph("app").topic("a", config={"retention.ms": 1000, "preallocate": True, "cleanup.policy": "compact"})
    assert topic.config == {"retention.ms": "1000", "preallocate": "true", "cleanup.policy": "compact"}


def test_topic_is_a_dict_key_and_cannot_change() -> None:
    graph, a, b, _ = abc()
    assert {a: 1, b: 2}[graph.topics["a"]] == 1
    with pytest.raises(FrozenInstanceError):
        a.name = "other"  # type: ignore[misc]


def test_topic_declared_again_alike_is_the_same_topic() -> None:
    graph = Graph("app")
    first = graph.topic("a", key=String(), value=Json(), partitions=3, replication=1, config={"x": 1})
    assert graph.topic("a", key=String(), value=Json(), partitions=3, replication=1, config={"x": "1"}) is first


def test_map_declares_the_whole_processor_and_returns_the_function_unchanged() -> None:
    graph, a, b, _ = abc(errors="errors", stop_on=KeyError)
    assert graph.map(a, to=b)(one) is one
    assert graph.processors == (
        Processor(
            id="one",
            kind=ProcessorKind.MAP,
            inputs=(a,),
            outputs=(b,),
            function=one,
            wants_step=False,
            batch=False,
            generator=False,
            guarantee=Guarantee.EXACTLY_ONCE,
            durability=Durability.COMMITTED,
            errors="errors",
            stop_on=(KeyError,),
            hash_header=True,
        ),
    )


def test_processor_options_win_over_those_of_the_graph() -> None:
    graph, a, b, _ = abc(errors="errors", stop_on=[KeyError])
    graph.sink(
        a,
        id="mine",
        batch=True,
        guarantee="at_least_once",
        durability=Durability.LEADER,
        errors="others",
        stop_on=(ValueError, OSError),
        hash_header=False,
    )(lambda values, steps: None)
    graph.map(a, to=b, errors=None)(one)
    mine, other = graph.processors
    assert (mine.id, mine.batch, mine.wants_step, mine.guarantee) == ("mine", True, True, Guarantee.AT_LEAST_ONCE)
    assert (mine.durability, mine.errors, mine.stop_on) == (Durability.LEADER, "others", (ValueError, OSError))
    assert (other.errors, other.stop_on) == (None, (KeyError,))
    assert (mine.hash_header, other.hash_header) == (False, True)
    assert list(graph.topics) == ["a", "b", "c", "errors", "others"]


def test_topics_are_named_by_string_as_well() -> None:
    graph, a, b, c = abc()
    graph.join("a", b, by="order", to=["c"])(two)
    assert (graph.processors[0].inputs, graph.processors[0].outputs) == ((a, b), (c,))


# Kinds.


@pytest.mark.parametrize(
    ("declare", "kind", "is_alts"),
    [
        (lambda g: g.map("a", to="b"), ProcessorKind.MAP, False),
        (lambda g: g.map("a", to=["b"]), ProcessorKind.MAP, False),
        (lambda g: g.map("a", to=("b", "c")), ProcessorKind.FORK, False),
        (lambda g: g.join("a", "b", by="order", to="c"), ProcessorKind.JOIN, False),
        (lambda g: g.join("a", "b", by="order", to=["c", "d"]), ProcessorKind.JOIN_FORK, False),
        (lambda g: g.alts("a", "b", to="c"), ProcessorKind.ALTS, True),
        (lambda g: g.alts("a", "b", to=["c", "d"]), ProcessorKind.ALTS_FORK, True),
        (lambda g: g.sink("a"), ProcessorKind.SINK, False),
        (lambda g: g.sink("a", "b"), ProcessorKind.SINK, False),
        (lambda g: g.sink("a", "b", alts=True), ProcessorKind.ALTS_SINK, True),
    ],
)
def test_kind_is_inferred_from_inputs_and_outputs(declare: Any, kind: ProcessorKind, is_alts: bool) -> None:
    graph, *_ = abc()
    graph.topic("d")
    declare(graph)(max)  # a builtin without a signature
    assert (graph.processors[0].kind, graph.processors[0].kind.is_alts) == (kind, is_alts)


# Signatures.


def asks(value: Any, step: Any) -> Any:
    return value, step


def asks_two(left: Any, right: Any, step: Any) -> Any:
    return left, right, step


def asks_and_has_defaults(value: Any, step: Any, limit: int = 10) -> Any:
    return value, step, limit


def has_defaults(value: Any, limit: int = 10, *, loud: bool = False) -> Any:
    return value, limit, loud


def takes_all(*values: Any, **options: Any) -> Any:
    return values, options


def asks_for_steps(values: Any, steps: Any) -> Any:
    return values, steps


def many(value: Any) -> Any:
    yield value


def many_with_step(value: Any, step: Any) -> Any:
    yield value, step


async def later(value: Any) -> Any:
    return value


async def many_later(value: Any) -> Any:
    yield value


class Caller:
    def __call__(self, value: Any, step: Any) -> Any:
        return value, step

    def method(self, value: Any, step: Any) -> Any:
        return value, step


class Yields:
    def __call__(self, value: Any) -> Any:
        yield value


def from_one(graph: Graph, **options: Any) -> Any:
    return graph.map("a", to="b", id="p", **options)


def from_two(graph: Graph, **options: Any) -> Any:
    return graph.join("a", "b", by="order", to="c", id="p", **options)


def from_either(graph: Graph, **options: Any) -> Any:
    return graph.alts("a", "b", to="c", id="p", **options)


@each_case(
    ("declare", "function", "batch", "wants_step", "generator"),
    [
        (from_one, one, False, False, False),
        (from_one, asks, False, True, False),
        (from_one, asks_and_has_defaults, False, True, False),
        (from_one, has_defaults, False, False, False),
        (from_one, takes_all, False, False, False),
        (from_one, max, False, False, False),
        (from_one, len, False, False, False),
        (from_one, partial(two, 1), False, False, False),
        (from_one, Caller(), False, True, False),
        (from_one, Caller().method, False, True, False),
        (from_one, many, False, False, True),
        (from_one, many_with_step, False, True, True),
        (from_one, partial(many), False, False, True),
        (from_one, Yields(), False, False, True),
        (from_one, one, True, False, False),
        (from_one, asks_for_steps, True, True, False),
        (from_two, two, False, False, False),
        (from_two, asks_two, False, True, False),
        (from_two, takes_all, False, False, False),
        (from_two, takes_all, True, False, False),
        (from_either, one, False, False, False),
        (from_either, asks, False, True, False),
        (from_either, asks_for_steps, True, True, False),
    ],
)
def test_signature_decides_what_a_function_is_passed(
    declare: Any, function: Callable[..., Any], batch: bool, wants_step: bool, generator: bool
) -> None:
    graph, *_ = abc()
    declare(graph, batch=batch)(function)
    (processor,) = graph.processors
    assert (processor.wants_step, processor.batch, processor.generator) == (wants_step, batch, generator)


@each_case(
    ("declare", "function", "batch", "message"),
    [
        (from_one, two, False, "two(left: 'Any', right: 'Any') -> 'Any': write two(value) or two(value, step)"),
        (from_one, lambda: 0, False, "<lambda>(): write <lambda>(value) or <lambda>(value, step)"),
        (from_one, lambda step: 0, False, "<lambda>(step): write <lambda>(value) or <lambda>(value, step)"),
        (from_one, lambda step, v: 0, False, "<lambda>(step, v): write <lambda>(value) or <lambda>(value, step)"),
        (from_one, lambda v, *, step: 0, False, "<lambda>(v, *, step): write <lambda>(value) or <lambda>(value, step)"),
        (from_one, lambda *v, step=0: 0, False, "<lambda>(*v, step=0): write <lambda>(value) or <lambda>(value, step)"),
        (from_one, lambda v, *, must: 0, False, "<lambda>(v, *, must): write <lambda>(value) or <lambda>(value, step)"),
        (from_one, lambda v, steps: 0, False, "<lambda>(v, steps): write <lambda>(value) or <lambda>(value, step)"),
        (from_one, lambda v, step: 0, True, "<lambda>(v, step): write <lambda>(values) or <lambda>(values, steps)"),
        (from_one, partial(two, 1, 2), False, "function() -> 'Any': write function(value) or function(value, step)"),
        (
            from_two,
            lambda v: 0,
            False,
            "<lambda>(v): write <lambda>(value_1, value_2) or <lambda>(value_1, value_2, step)",
        ),
        (
            from_two,
            lambda v, steps: 0,
            True,
            "<lambda>(v, steps): write <lambda>(values_1, values_2) or <lambda>(values_1, values_2, steps)",
        ),
        (from_either, lambda a, b: 0, False, "<lambda>(a, b): write <lambda>(value) or <lambda>(value, step)"),
    ],
)
def test_signature_that_does_not_fit_is_refused_with_one_that_does(
    declare: Any, function: Callable[..., Any], batch: bool, message: str
) -> None:
    graph, *_ = abc()
    with pytest.raises(GraphError) as caught:
        declare(graph, batch=batch)(function)
    assert str(caught.value) == f"processor 'p': its function is {message}"
    assert graph.processors == ()


# Refusals of a graph, of a topic, of a processor.

NAME = "this name is not usable: use 1 to 100 of a-z A-Z 0-9 . _ -, not . or .. alone"
ID = "this name is not usable: give it an id= of 1 to 100 of a-z A-Z 0-9 _ - (a dot would run into the graph's name)"
TOPIC = "is not usable: use 1 to 249 of a-z A-Z 0-9 . _ -, not . or .. alone"
DEAD_LETTERS = (
    "takes dead letters, which have a schema of their own: declare it with value=ks.dead_letters(), or after the "
    "errors= that names it, or not at all: graph.topics has it"
)
ONCE = "declare it once, and use the Topic that graph.topic returned"
OPTIONS = (
    "guarantee, durability, errors, stop_on, hash_header, retry, id, persistence, concurrency, order, state, batch"
)
REPLICAS = (
    "transactions need the acknowledgement of all in-sync replicas: choose durability committed, or another guarantee"
)
REPEATED = (
    "a batch is resent if its broker fails, though it may be stored already, and the copy is dropped only with "
    "acks=all: choose durability committed or none, or another guarantee"
)
GUARANTEES = "choose exactly_once, at_least_once, at_most_once"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Graph(""), f"graph '': {NAME}"),
        (lambda: Graph("a/b"), f"graph 'a/b': {NAME}"),
        (lambda: Graph("a\n"), f"graph 'a\\n': {NAME}"),
        (lambda: Graph("."), f"graph '.': {NAME}"),
        (lambda: Graph(".."), f"graph '..': {NAME}"),
        (lambda: Graph("a\0"), f"graph 'a\\x00': {NAME}"),
        (lambda: Graph("a" * 101), f"graph '{'a' * 101}': {NAME}"),
        (lambda: Graph("g", guarantee="twice"), f"graph 'g': guarantee 'twice' is not known: {GUARANTEES}"),
        (
            lambda: Graph("g", durability="some"),
            "graph 'g': durability 'some' is not known: choose committed, leader, none",
        ),
        (
            lambda: Graph("g", stop_on=[KeyError, "x"]),  # type: ignore[list-item]
            "graph 'g': stop_on has 'x': give exception classes",
        ),
        (
            lambda: Graph("g", stop_on=[int]),  # type: ignore[list-item]
            "graph 'g': stop_on has <class 'int'>: give exception classes",
        ),
        (lambda: Graph("g", errors="a b"), f"topic name 'a b' {TOPIC}"),
    ],
)
def test_invalid_graph_is_refused_with_its_name_and_the_remedy(make: Any, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert str(caught.value) == message


@each_case(
    ("declare", "message"),
    [
        (lambda g: g.topic(""), f"topic name '' {TOPIC}"),
        (lambda g: g.topic("."), f"topic name '.' {TOPIC}"),
        (lambda g: g.topic(".."), f"topic name '..' {TOPIC}"),
        (lambda g: g.topic("a/b"), f"topic name 'a/b' {TOPIC}"),
        (lambda g: g.topic("caf\u00e9"), f"topic name 'caf\u00e9' {TOPIC}"),
        (lambda g: g.topic("a" * 250), f"topic name '{'a' * 250}' {TOPIC}"),
        (lambda g: g.topic(7), f"topic name 7 {TOPIC}"),
        (
            lambda g: g.topic("__ks.app.p.journal"),
            (
                "topic name '__ks.app.p.journal' is reserved: names that start with __ are the system's own: "
                "choose another one"
            ),
        ),
        (lambda g: g.topic("x", value=Json), "topic 'x': value is the class Json: write value=ks.Json()"),
        (
            lambda g: g.topic("x", key="utf-8"),
            (
                "topic 'x': key='utf-8' is not a serde: write key=ks.Json(), ks.String(), ks.Bytes() or ks.Avro(...), "
                "a serde that makes bytes of the values"
            ),
        ),
        (lambda g: g.topic("x", partitions=0), "topic 'x': partitions is 0: give 1 or more, or leave it out"),
        (lambda g: g.topic("x", replication=-1), "topic 'x': replication is -1: give 1 or more, or leave it out"),
        (lambda g: g.topic("a", value=Json()), f"topic 'a' is declared twice, differing in value: {ONCE}"),
        (lambda g: g.topic("a", partitions=2), f"topic 'a' is declared twice, differing in partitions: {ONCE}"),
        (lambda g: g.topic("errors", value=Json()), f"topic 'errors' {DEAD_LETTERS}"),
    ],
)
def test_invalid_topic_is_refused_with_its_name_and_the_remedy(declare: Any, message: str) -> None:
    graph, *_ = abc(errors="errors")
    with pytest.raises(GraphError) as caught:
        declare(graph)
    assert str(caught.value) == message
    assert list(graph.topics) == ["a", "b", "c", "errors"]


@each_case(
    ("declare", "function", "message"),
    [
        (
            lambda g: g.map("a", to="b", id="first"),
            one,
            "processor 'first' is declared twice: give one of the two another id=",
        ),
        (lambda g: g.map("a", to="b"), lambda value: value, f"processor '<lambda>': {ID}"),
        (lambda g: g.map("a", to="b"), partial(one), f"processor '': {ID}"),
        (lambda g: g.map("a", to="b", id="a.b"), one, f"processor 'a.b': {ID}"),
        (lambda g: g.map("a", to="b", id="a/b"), one, f"processor 'a/b': {ID}"),
        (lambda g: g.map("a", to="b", id=""), one, f"processor '': {ID}"),
        (lambda g: g.map("a", to="b", times=3), one, f"processor 'one' has no option 'times': choose from {OPTIONS}"),
        (
            lambda g: g.map("x", to="b"),
            one,
            "processor 'one': there is no topic 'x': declare it first, with graph.topic",
        ),
        (
            lambda g: g.map("a", to=["b", "x"]),
            one,
            "processor 'one': there is no topic 'x': declare it first, with graph.topic",
        ),
        (
            lambda g: g.map("__ks.app.first.journal", to="b"),
            one,
            "processor 'one': there is no topic '__ks.app.first.journal': declare it first, with graph.topic",
        ),
        (
            lambda g: g.map(Graph("other").topic("a"), to="b"),
            one,
            "processor 'one': topic 'a' is of another graph: declare it in this one too",
        ),
        (
            lambda g: g.sink(7),
            one,
            "processor 'one': 7 is not a topic: give what graph.topic returned, or a topic's name",
        ),
        (lambda g: g.join("a", "b", "a", by="order", to="c"), two, "processor 'two' reads 'a' twice: name it once"),
        (lambda g: g.sink("a", "b", "b", alts=True), one, "processor 'one' reads 'b' twice: name it once"),
        (lambda g: g.map("a", to=["b", "b"]), one, "processor 'one' writes 'b' twice: name it once"),
        (
            lambda g: g.join("a", "b", by="order", to=["c", "a"]),
            two,
            "processor 'two' reads and writes 'a', an endless loop: write to another topic",
        ),
        (
            lambda g: g.map("a", to=[]),
            one,
            "processor 'one' writes no topic: name one in to=, or declare it with graph.sink",
        ),
        (
            lambda g: g.alts("a", to="b"),
            one,
            "processor 'one' reads one topic, and join and alts need two: use graph.map or graph.sink",
        ),
        (lambda g: g.sink(), one, "processor 'one' reads no topic: name one"),
        (
            lambda g: g.map("a", to="b", id="p"),
            7,
            "processor 'p': 7 is not a function: give one that takes a record's value",
        ),
        (
            lambda g: g.map("a", to="b", batch=True),
            many_later,
            "processor 'many_later' is a batch and yields: return a list of one result per record",
        ),
        (
            lambda g: g.sink("a"),
            many_later,
            "processor 'many_later' is a sink and yields, so that its body would never run: write a plain function",
        ),
        (
            lambda g: g.map("a", to="b", batch=True),
            many,
            "processor 'many' is a batch and yields: return a list of one result per record",
        ),
        (
            lambda g: g.sink("a"),
            many,
            "processor 'many' is a sink and yields, so that its body would never run: write a plain function",
        ),
        (
            lambda g: g.map("a", to="b", guarantee="maybe"),
            one,
            f"processor 'one': guarantee 'maybe' is not known: {GUARANTEES}",
        ),
        (
            lambda g: g.map("a", to="b", durability="disk"),
            one,
            "processor 'one': durability 'disk' is not known: choose committed, leader, none",
        ),
        (
            lambda g: g.map("a", to="b", durability="none"),
            one,
            f"processor 'one' is exactly_once with durability none: {REPLICAS}",
        ),
        (
            lambda g: g.sink("a", durability="leader"),
            one,
            f"processor 'one' is exactly_once with durability leader: {REPLICAS}",
        ),
        (
            lambda g: g.map("a", to="b", guarantee="at_most_once", durability="leader"),
            one,
            f"processor 'one' is at_most_once with durability leader: {REPEATED}",
        ),
        (
            lambda g: g.map("a", to="b", stop_on=ValueError("x")),
            one,
            "processor 'one': stop_on has ValueError('x'): give exception classes",
        ),
        (
            lambda g: g.map("a", to="b", errors="__x"),
            one,
            "topic name '__x' is reserved: names that start with __ are the system's own: choose another one",
        ),
        (lambda g: g.map("a", to="b", errors="c"), one, f"topic 'c' {DEAD_LETTERS}"),
    ],
)
def test_invalid_processor_is_refused_with_its_name_and_the_remedy(declare: Any, function: Any, message: str) -> None:
    graph, a, b, _ = abc()
    graph.map(a, to=b, id="first")(one)
    with pytest.raises(GraphError) as caught:
        declare(graph)(function)
    assert str(caught.value) == message
    assert [processor.id for processor in graph.processors] == ["first"]


def test_exactly_once_is_refused_with_a_durability_of_the_graph_that_cannot_keep_it() -> None:
    graph, a, b, c = abc(guarantee="at_most_once", durability="none")
    graph.map(a, to=b)(one)
    with pytest.raises(GraphError, match="processor 'two' is exactly_once with durability none"):
        graph.join(a, b, by="order", to=c, guarantee="exactly_once")(two)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_every_guarantee_accepts_exactly_the_durabilities_that_can_keep_it(guarantee: Guarantee) -> None:
    taken = []
    for durability in Durability:
        graph, a, b, _ = abc()
        with suppress(GraphError):
            graph.map(a, to=b, guarantee=guarantee, durability=durability)(one)
            taken.append(str(durability))
    assert (
        taken
        == {
            Guarantee.EXACTLY_ONCE: ["committed"],
            Guarantee.AT_LEAST_ONCE: ["committed", "leader", "none"],
            Guarantee.AT_MOST_ONCE: ["committed", "none"],
        }[guarantee]
    )


# Dead letters.


def test_dead_letter_topic_is_among_the_topics_with_its_own_schema() -> None:
    graph, a, b, _ = abc(errors="errors")
    topic = graph.topics["errors"]
    assert isinstance(topic.value, Avro)
    assert (topic.key, topic.value, topic.value.name) == (Bytes(), dead_letters(), "kstreams.DeadLetter")
    assert graph.topics["errors"] is topic
    assert graph.topic("errors") is topic
    graph.map(topic, to=a, errors=None)(one)
    graph.map(a, to=b, id="again")(one)
    graph.validate()


def test_dead_letter_topic_may_be_declared_for_its_creation() -> None:
    graph, a, *_ = abc(errors="errors")
    topic = graph.topic("errors", key=String(), partitions=2, replication=3)
    assert (topic.value, topic.partitions, topic.replication) == (dead_letters(), 2, 3)
    graph.sink(a, errors="errors")(one)
    assert graph.topics["errors"] is topic
    assert list(graph.topics) == ["a", "b", "c", "errors"]


def test_errors_may_be_the_topic_itself() -> None:
    graph, a, b, _ = abc(errors="errors")
    topic = graph.topic("errors", partitions=2)
    graph.map(a, to=b, id="first", errors=topic)(one)
    other = Graph("other", errors=topic)
    other.sink(other.topic("a"), id="second")(one)
    assert [processor.errors for processor in (*graph.processors, *other.processors)] == ["errors", "errors"]
    assert other.topics["errors"] is topic
    assert other.describe().splitlines()[0] == "graph other: exactly_once, committed, dead letters errors"


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ("c", f"topic 'c' {DEAD_LETTERS}"),
        ("foreign", "processor 'one': topic 'c' is of another graph: declare it in this one too"),
    ],
)
def test_errors_that_are_a_topic_of_other_records_or_of_another_graph_are_refused(errors: str, message: str) -> None:
    graph, a, b, c = abc()
    with pytest.raises(GraphError) as caught:
        graph.map(a, to=b, errors=c if errors == "c" else Graph("other").topic("c"))(one)
    assert (str(caught.value), graph.processors) == (message, ())
    with pytest.raises(GraphError) as caught:
        Graph("shared", errors=c)
    assert str(caught.value) == f"topic 'c' {DEAD_LETTERS}"


@pytest.mark.parametrize(
    ("processors", "circle"),
    [
        ([("repair", "x", "x")], "x -> x"),
        ([("repair", "x", "y"), ("other", "y", "x")], "x -> y -> x"),
        ([("repair", "x", "y"), ("other", "y", "z"), ("third", "z", "x")], "x -> y -> z -> x"),
    ],
)
def test_dead_letters_that_form_a_loop_are_refused(processors: list[tuple[str, str, str]], circle: str) -> None:
    graph, a, *_ = abc()
    for name in ("x", "y", "z"):
        graph.sink(a, id=f"writes_{name}", errors=name)(one)
    *fine, last = processors
    for name, reads, errors in fine:
        graph.sink(reads, id=name, errors=errors)(one)
    with pytest.raises(GraphError) as caught:
        graph.sink(last[1], id=last[0], errors=last[2])(one)
    assert str(caught.value) == (
        f"dead letters form an endless loop, {circle}: give a processor that reads them errors=None, or another topic"
    )


def test_errors_of_a_processor_that_reads_its_own_dead_letters_are_refused() -> None:
    graph, a, *_ = abc(errors="errors")
    with pytest.raises(GraphError) as caught:
        graph.map("errors", to=a, id="repair")(one)
    assert str(caught.value) == (
        "dead letters form an endless loop, errors -> errors: "
        "give a processor that reads them errors=None, or another topic"
    )


# The whole graph.


def test_graph_without_processors_is_refused() -> None:
    graph, *_ = abc()
    with pytest.raises(GraphError) as caught:
        graph.validate()
    assert str(caught.value) == "graph 'app' has no processors: declare one with @graph.map or another kind"


def test_unequal_partition_counts_of_inputs_are_refused_with_both_counts() -> None:
    graph, a, b, c = abc()
    graph.alts(a, b, c, to=graph.topic("d"), id="merge")(one)
    graph.check_partitions({"a": 3, "b": 3, "c": 3, "d": 1})
    graph.check_partitions({"b": 3, "d": 1})
    with pytest.raises(GraphError) as caught:
        graph.check_partitions({"a": 3, "b": 3, "c": 6, "d": 1})
    assert str(caught.value) == (
        "processor 'merge' (alts) reads 'a' with 3 partitions, but 'c' with 6: give both the same number of partitions"
    )


def test_unequal_declared_partition_counts_are_refused_before_anything_starts() -> None:
    graph = Graph("app")
    graph.sink(graph.topic("a", partitions=1), graph.topic("b"), graph.topic("c", partitions=2), id="zip")(max)
    with pytest.raises(GraphError, match=r"processor 'zip' \(sink\) reads 'a' with 1 partitions, but 'c' with 2"):
        graph.validate()


def test_undeclared_partition_counts_follow_the_topics_read_together_then_the_inputs() -> None:
    graph = Graph("app", errors="errors")
    for name in ("ewr", "jfk", "flights", "departed", "extra", "joined", "circle", "round", "lonely"):
        graph.topic(name)
    graph.topic("declared", partitions=5)
    graph.alts("ewr", "jfk", to="flights", id="merge")(one)
    graph.map("flights", to="departed", id="split")(one)
    graph.join("departed", "extra", by="order", to=["joined", "declared"], id="enrich")(two)
    graph.map("circle", to="round", id="out", errors=None)(one)
    graph.map("round", to="circle", id="back", errors=None)(one)
    like = {name: graph.partitions_like(name, {"jfk": 3}) for name in graph.topics}
    assert like == {
        "ewr": 3,
        "jfk": 3,
        "flights": 3,
        "departed": 3,
        "extra": 3,
        "joined": 3,
        "circle": 4,
        "round": 4,
        "lonely": 4,
        "declared": 5,
        "errors": 3,
    }
    assert [graph.partitions_like(name, {"jfk": 3}, 7) for name in ("ewr", "declared", "lonely")] == [3, 5, 7]


def test_journal_is_for_alts_that_are_exactly_once_and_no_others() -> None:
    graph, a, b, c = abc()
    graph.alts(a, b, to=c, id="one")(one)
    graph.alts(a, b, to=c, id="two", guarantee="at_least_once")(one)
    graph.sink(a, b, id="three", alts=True)(one)
    graph.map(a, to=b, id="four")(one)
    assert [graph.journal_topic(p) for p in graph.processors] == [
        "__ks.app.one.journal",
        None,
        "__ks.app.three.journal",
        None,
    ]


def test_beginnings_are_kept_in_a_topic_of_the_graph_whose_name_no_user_can_take() -> None:
    graph, _, _, _ = abc()
    assert graph.beginnings == "__ks.app.beginnings"
    with pytest.raises(GraphError, match="reserved"):
        graph.topic(graph.beginnings)


# Descriptions.


def test_show_serde_has_no_memory_address() -> None:
    assert [show_serde(serde) for serde in (Bytes(), Plain(), dead_letters())] == [
        "Bytes()",
        "Plain",
        "Avro(kstreams.DeadLetter)",
    ]


def test_describe_lists_everything_in_the_order_of_declaration() -> None:
    graph = Graph("flights", errors="flights.errors", stop_on=(KeyError, OSError))
    ewr = graph.topic("ewr", key=String(), value=Json(), partitions=6, replication=3, config={"retention.ms": 60_000})
    jfk = graph.topic("jfk", value=Plain())
    flights, departed = graph.topic("flights"), graph.topic("departed")
    graph.alts(ewr, jfk, to=flights, id="merge")(asks)
    graph.map(flights, to=[departed], id="split", stop_on=(), hash_header=False)(many)
    graph.sink(departed, id="store", batch=True, guarantee="at_most_once", durability="none", errors=None)(one)
    assert (
        graph.describe()
        == """\
graph flights: exactly_once, committed, dead letters flights.errors

topics
  ewr             key String(encoding='utf-8'), value Json(), 6 partitions, replication 3, retention.ms=60000
  jfk             key Bytes(), value Plain
  flights         key Bytes(), value Bytes()
  departed        key Bytes(), value Bytes()
  flights.errors  key Bytes(), value Avro(kstreams.DeadLetter)

processors
  merge: alts, exactly_once, committed, wants_step
    reads         ewr, jfk
    writes        flights
    dead letters  flights.errors
    stops on      KeyError, OSError
    journal       __ks.flights.merge.journal
  split: map, exactly_once, committed, generator, no hash header
    reads         flights
    writes        departed
    dead letters  flights.errors
  store: sink, at_most_once, none, batch
    reads         departed
    dead letters  none
    stops on      KeyError, OSError"""
    )


def test_describe_of_an_empty_graph_has_empty_sections() -> None:
    assert Graph("app").describe() == "graph app: exactly_once, committed, dead letters none\n\ntopics\n\nprocessors"
