"""Steps that fail: dead letters, exceptions that stop a worker, and what is committed, under each guarantee."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader

import kstreams_py as ks
from kstreams_py import Settings, errors
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.formats.schemas import canonical
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from tests.clusters import open_cluster
from tests.system.app import DEAD_LETTER, GUARANTEES, MakeSettings, decode_dead_letter, read_dead_letters
from tests.system.harness import Cluster, RunningSlot, WorkerProcess, running, wait_until
from tests.waiting import WAIT

SCHEMA = json.loads(DEAD_LETTER.read_text(encoding="utf-8"))
PARSED = parse_schema(SCHEMA)


class Rejected(Exception):
    """Raised by the functions of these tests."""


def topic_id(settings: Settings, topic: str) -> str:
    return open_cluster(settings).topics([topic])[topic].topic_id


def reject(value: bytes) -> bytes:
    """The function of most tests: returns its value, and raises if the value starts with `bad`."""
    if value.startswith(b"bad"):
        raise Rejected(f"no {value.decode()}")
    return value


class Pipe:
    """A map from `NAME.in` to `NAME.out` with dead letters in `NAME.errors`, on topics that exist."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.source, self.target, self.errors = f"{name}.in", f"{name}.out", f"{name}.errors"
        self.group = f"{name}.step"
        cluster.create(self.source, self.target, self.errors)

    def graph(self, function: Callable[..., Any], **options: Any) -> ks.Graph:
        graph = ks.Graph(self.name, errors=self.errors)
        graph.map(graph.topic(self.source), to=graph.topic(self.target), id="step", **options)(function)
        return graph

    def await_committed(self, offset: int) -> None:
        self.cluster.await_committed(self.group, self.source, {0: offset})

    @property
    def committed(self) -> int | None:
        return self.cluster.committed(self.group, self.source).get(0)

    @property
    def outputs(self) -> list[bytes | None]:
        return self.cluster.values(self.target)

    @property
    def dead_letters(self) -> list[tuple[str, list[bytes | None]]]:
        return read_dead_letters(self.cluster, self.errors)


@pytest.fixture
def pipe(cluster: Cluster, name: str) -> Pipe:
    return Pipe(cluster, name)


# Exceptions that make a dead letter.


def test_function_raises_makes_a_dead_letter_that_holds_the_whole_step(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings
) -> None:
    around = settings()
    cluster.write(pipe.source, [b"fine"])
    cluster.write(
        pipe.source, [b"bad"], keys=[b"k"], headers=[("trace", b"1"), ("none", None)], timestamp=1_357_000_000_000
    )
    cluster.write(pipe.source, [b"fine too", None])
    with running(pipe.graph(reject), around):
        pipe.await_committed(4)
    assert pipe.outputs == [b"fine", b"fine too"]
    m, of_tombstone = cluster.read(pipe.errors)
    assert [decode_dead_letter(of_tombstone)["inputs"][0][each] for each in ("offset", "key", "value", "headers")] == [
        3, None, None, [],
    ]  # fmt: skip
    delivery = hash_prefix(pipe.group, pipe.source, topic_id(around, pipe.source), 0) + pack_offset(1)
    assert decode_dead_letter(m) == {
        "processor": pipe.group,
        "delivery_hash": delivery,
        "exception_class": f"{__name__}.Rejected",
        "exception_message": "no bad",
        "inputs": [
            {
                "topic": pipe.source,
                "partition": 0,
                "offset": 1,
                "timestamp": 1_357_000_000_000,
                "key": b"k",
                "value": b"bad",
                "headers": [{"name": "trace", "value": b"1"}, {"name": "none", "value": None}],
            }
        ],
        "cut": None,
    }
    trace = str(schemaless_reader(BytesIO(m.value()[5:]), PARSED, None)["traceback"])  # type: ignore[index, call-overload]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert ", in reject\n" in trace
    assert trace.endswith("Rejected: no bad\n")
    assert (m.key(), m.timestamp()[1]) == (b"k", 1_357_000_000_000)
    assert m.headers() == [
        ("ks-hash", delivery),
        ("ks-type", b"dead-letter"),
        ("ks-proc", pipe.group.encode()),
        ("ks-error", b"Rejected"),
    ]
    schema_id = int.from_bytes(m.value()[1:5])
    assert (m.value()[0], FileRegistry(around.schema_directory).schema(schema_id)) == (0, canonical(SCHEMA))


def test_join_raises_makes_one_dead_letter_with_both_inputs(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    around = settings()
    left, right, target, dead = (f"{name}.{end}" for end in ("left", "right", "out", "errors"))
    cluster.create(left, right, target, dead)
    cluster.write(left, [b"l0", b"bad", b"l2"], keys=[b"a", b"b", b"c"])
    cluster.write(right, [b"r0", b"r1", b"r2"])
    graph = ks.Graph(name, errors=dead)

    @graph.join(graph.topic(left), graph.topic(right), by="order", to=graph.topic(target))
    def both(a: bytes, b: bytes) -> bytes:
        return reject(a) + b

    with running(graph, around):
        for topic in (left, right):
            cluster.await_committed(f"{name}.both", topic, {0: 3})
    assert cluster.values(target) == [b"l0r0", b"l2r2"]
    (m,) = cluster.read(dead)
    found = decode_dead_letter(m)
    assert [(i["topic"], i["offset"], i["value"]) for i in found["inputs"]] == [(left, 1, b"bad"), (right, 1, b"r1")]
    assert m.key() == b"b"
    tailers = [(topic, topic_id(around, topic), 0, 1) for topic in (left, right)]
    assert found["delivery_hash"] == dict(m.headers())["ks-hash"] == joined_hash(f"{name}.both", tailers)


def test_dead_letter_and_its_position_become_visible_in_one_transaction(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings
) -> None:
    gate, waiting = threading.Event(), threading.Event()

    def function(value: bytes) -> bytes:
        if value == b"wait":
            waiting.set()
            assert gate.wait(WAIT)
        return reject(value)

    cluster.write(pipe.source, [b"bad"] * 1_200 + [b"wait"])  # more than a transaction holds back
    # on a slow machine, the function gets to what waits only after seconds, and no commit may come before
    patient = settings(commit_interval_ms=60_000, transaction_timeout_ms=120_000, session_timeout_ms=120_000)
    with running(pipe.graph(function), patient):
        wait_until(lambda: cluster.read(pipe.errors, "read_uncommitted"), "dead letters are written")
        assert waiting.wait(WAIT)
        assert (pipe.dead_letters, pipe.committed) == ([], 0)
        gate.set()
    # a stop commits
    pipe.await_committed(1_201)
    cluster.await_markers(pipe.errors, pipe.target)
    assert pipe.dead_letters == [("Rejected", [b"bad"])] * 1_200
    assert pipe.outputs == [b"wait"]


def test_errors_topic_of_a_processor_overrides_the_graphs(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    source, common, own = (f"{name}.{end}" for end in ("in", "errors", "errors-own"))
    cluster.create(source, common, own)
    cluster.write(source, [b"bad", b"fine"])
    graph = ks.Graph(name, errors=common)
    read = graph.topic(source)
    graph.sink(read, id="plain")(reject)
    graph.sink(read, id="special", errors=own)(reject)
    graph.sink(read, id="none", errors=None)(reject)
    with running(graph, settings()):
        for processor in ("plain", "special", "none"):
            cluster.await_committed(f"{name}.{processor}", source, {0: 2})
    assert [decode_dead_letter(m)["processor"] for m in cluster.read(common)] == [f"{name}.plain"]
    assert [decode_dead_letter(m)["processor"] for m in cluster.read(own)] == [f"{name}.special"]


def test_no_errors_topic_logs_and_drops_a_failing_record_which_counts_as_delivered(
    cluster: Cluster, settings: MakeSettings, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = f"{name}.in", f"{name}.out"
    cluster.create(source, target)
    graph = ks.Graph(name)
    graph.map(graph.topic(source), to=graph.topic(target), id="step")(reject)
    caplog.set_level(logging.WARNING, "kstreams_py")

    def find_messages(text: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if text in r.getMessage()]

    with running(graph, settings()):
        cluster.write(source, [b"bad", b"fine"])
        cluster.await_committed(f"{name}.step", source, {0: 2})
    assert cluster.values(target) == [b"fine"]
    (line,) = find_messages("no bad")
    assert all(part in line for part in ("step", "Rejected", f"{source}[0]@0"))
    with running(graph, settings()):
        cluster.write(source, [b"later"])
        cluster.await_committed(f"{name}.step", source, {0: 3})
    assert cluster.values(target) == [b"fine", b"later"]
    assert len(find_messages("no bad")) == 1, "the record is not read again"


def test_record_that_does_not_decode_is_a_dead_letter_with_its_raw_bytes(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    around = settings()
    avro = ks.Avro({"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]})
    good = avro.bind(FileRegistry(around.schema_directory), "seen-value").serialize({"n": 1}) or b""
    of_avro = [good, b"\x01" + good[1:], b"\x00\x00", b"", b"\x00\x7f\xff\xff\xff\x02", good[:5], good + b"!"]
    of_json = [b"{}", b"{", b"NaN", b"\xff", b""]
    of_text = ["é".encode(), b"\xe9"]
    topics = [f"{name}.{end}" for end in ("avro", "json", "text")]
    target, dead = f"{name}.out", f"{name}.errors"
    cluster.create(*topics, target, dead)
    graph = ks.Graph(name, errors=dead)
    for topic, values, serde in zip(topics, (of_avro, of_json, of_text), (avro, ks.Json(), ks.String()), strict=True):
        cluster.write(topic, values)
        graph.map(graph.topic(topic, value=serde), to=graph.topic(target, value=ks.Json()), id=topic[-4:])(
            lambda value: value
        )
    with running(graph, around):
        for topic, values in zip(topics, (of_avro, of_json, of_text), strict=True):
            cluster.await_committed(f"{name}.{topic[-4:]}", topic, {0: len(values)})
    assert Counter(cluster.values(target)) == Counter(['"é"'.encode(), b"{}", b'{"n":1}'])
    raw = {topic: [values for kind, values in read_dead_letters_of(cluster, dead, topic)] for topic in topics}
    assert raw == {
        topics[0]: [[value] for value in of_avro[1:]],
        topics[1]: [[value] for value in of_json[1:]],
        topics[2]: [[b"\xe9"]],
    }
    assert {kind for kind, _ in read_dead_letters(cluster, dead)} == {"DecodeError"}


def read_dead_letters_of(cluster: Cluster, dead: str, topic: str) -> list[tuple[str, list[bytes]]]:
    """The exception's class and the input values of each dead letter of one input."""
    found = [decode_dead_letter(m) for m in cluster.read(dead)]
    return [
        (each["exception_class"], [i["value"] for i in each["inputs"]])
        for each in found
        if each["inputs"][0]["topic"] == topic
    ]


def test_key_that_does_not_decode_is_a_dead_letter_when_the_function_reads_it(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    source, target, dead = (f"{name}.{end}" for end in ("in", "out", "errors"))
    cluster.create(source, target, dead)
    cluster.write(source, [b"a", b"b"], keys=[b"\xff", b"key"])
    graph = ks.Graph(name, errors=dead)
    read = graph.topic(source, key=ks.String())

    @graph.map(read, to=graph.topic(target))
    def keyed(value: bytes, step: ks.Step) -> bytes:
        key: str = step.key
        return value + key.encode()

    with running(graph, settings()):
        cluster.await_committed(f"{name}.keyed", source, {0: 2})
    assert cluster.values(target) == [b"bkey"]
    assert [(m.key(), decode_dead_letter(m)["inputs"][0]["key"]) for m in cluster.read(dead)] == [(b"\xff", b"\xff")]


ODD_OUTPUTS: dict[str, Any] = {
    "a value of another type": "text",
    "a key that does not encode": ks.Out(b"v", key="text"),
    "a header that is not bytes": ks.Out(b"v", headers=[("h", 5)]),  # type: ignore[list-item]
    "headers that are not pairs": ks.Out(b"v", headers={"h": b"1"}),  # type: ignore[arg-type]
    "a timestamp that is not a number": ks.Out(b"v", timestamp="now"),  # type: ignore[arg-type]
    "a timestamp with a fraction": ks.Out(b"v", timestamp=1.5),  # type: ignore[arg-type]
    "a timestamp out of range": ks.Out(b"v", timestamp=1 << 70),
}


def test_custom_serde_that_returns_no_bytes_makes_a_dead_letter(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings
) -> None:
    class Careless:
        def serialize(self, value: Any) -> Any:
            return 5 if value == b"odd" else value

        def deserialize(self, data: bytes) -> Any:
            return data

    cluster.write(pipe.source, [b"before", b"odd", b"after"])
    graph = ks.Graph(pipe.name, errors=pipe.errors)
    graph.map(graph.topic(pipe.source), to=graph.topic(pipe.target, value=Careless()), id="step")(lambda value: value)
    with running(graph, settings()):
        pipe.await_committed(3)
    assert pipe.outputs == [b"before", b"after"]
    assert [values for _, values in pipe.dead_letters] == [[b"odd"]]


@pytest.mark.parametrize(
    "generator",
    # in the quick tier, test_kinds.py has a generator of which all outputs are written, or none
    [pytest.param(False, id="returned"), pytest.param(True, id="yielded", marks=pytest.mark.long)],
)
def test_fork_with_one_output_that_does_not_encode_writes_none_of_them(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings, name: str, generator: bool
) -> None:
    second = f"{name}.json"
    cluster.create(second)
    cluster.write(pipe.source, [b"1", b"odd", b"3"])
    graph = ks.Graph(name, errors=pipe.errors)
    to = [graph.topic(pipe.target), graph.topic(second, value=ks.Json())]

    def returned(value: bytes) -> Any:
        return {pipe.target: value, second: {1, 2} if value == b"odd" else int(value)}

    def yielded(value: bytes) -> Iterator[Any]:
        yield {pipe.target: value}
        yield {second: {1, 2} if value == b"odd" else int(value)}

    graph.map(graph.topic(pipe.source), to=to, id="step")(yielded if generator else returned)
    with running(graph, settings()):
        pipe.await_committed(3)
    assert (pipe.outputs, cluster.values(second)) == ([b"1", b"3"], [b"1", b"3"])
    assert pipe.dead_letters == [("EncodeError", [b"odd"])]


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ODD_EXCEPTIONS: dict[str, Exception] = {
    "text that is no UTF-8": Rejected("name \udcff"),
    "a message larger than a record": Rejected("x" * 2_000_000),
    "no message at all": _Mute(),
    "an error of decoding": errors.DecodeError("the function decodes too"),
}


def test_output_or_message_that_cannot_be_stored_makes_a_dead_letter(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings
) -> None:
    def function(value: bytes) -> Any:
        if error := ODD_EXCEPTIONS.get(value.decode()):
            raise error
        return ODD_OUTPUTS.get(value.decode(), value)

    values = [b"before", *(name.encode() for name in (*ODD_OUTPUTS, *ODD_EXCEPTIONS)), b"after"]
    cluster.write(pipe.source, values)
    with running(pipe.graph(function), settings()):
        pipe.await_committed(len(values))
    assert pipe.outputs == [b"before", b"after"]
    assert [read for _, read in pipe.dead_letters] == [[value] for value in values[1:-1]]
    kinds = [kind for kind, _ in pipe.dead_letters]
    assert kinds[len(ODD_OUTPUTS) :] == [type(error).__name__ for error in ODD_EXCEPTIONS.values()]


def test_dead_letters_can_be_read_by_a_processor_and_tried_again(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings
) -> None:
    mended = threading.Event()

    def function(value: bytes) -> bytes:
        return value if mended.is_set() else reject(value)

    graph = pipe.graph(function)

    dead_letters: ks.Topic[bytes, dict[str, Any]] = graph.topic(pipe.errors)

    @graph.map(dead_letters, to=graph.topic(pipe.target), errors=None)
    def again(dead: dict[str, Any]) -> ks.Out:
        (read,) = dead["inputs"]
        return ks.Out(function(read["value"]), key=read["key"], headers=[("was", dead["exception_message"].encode())])

    cluster.write(pipe.source, [b"1", b"bad"], keys=[b"k1", b"k2"])
    first = ks.Graph(pipe.name, errors=pipe.errors)
    first.map(first.topic(pipe.source), to=first.topic(pipe.target), id="step")(function)
    with running(first, settings()):
        pipe.await_committed(2)
    mended.set()
    with running(graph, settings()):
        wait_until(lambda: len(pipe.outputs) == 2, "the second attempt")
    m = cluster.read(pipe.target)[1]
    assert (m.value(), m.key(), m.headers()[0]) == (b"bad", b"k2", ("was", b"no bad"))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_dead_letters_are_written_under_each_guarantee(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings, guarantee: str
) -> None:
    cluster.write(pipe.source, [b"1", b"bad", b"2", b"bad 2"])
    with running(pipe.graph(reject, guarantee=guarantee), settings()):
        pipe.await_committed(4)
        wait_until(lambda: len(pipe.dead_letters) == 2, "the dead letters")
    assert pipe.outputs == [b"1", b"2"]
    assert pipe.dead_letters == [("Rejected", [b"bad"]), ("Rejected", [b"bad 2"])]
    with running(pipe.graph(reject, guarantee=guarantee), settings()):
        cluster.write(pipe.source, [b"3"])
        pipe.await_committed(5)
        wait_until(lambda: pipe.outputs == [b"1", b"2", b"3"], "the next output")
    assert len(pipe.dead_letters) == 2, "the step of a dead letter is not repeated"


# Exceptions that stop the worker.


WORKER = """
from pathlib import Path
import kstreams_py as ks
from kstreams_py.errors import SinkUnavailable

graph = ks.Graph({name!r}, errors="{name}.errors", stop_on=LookupError)

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def step(value):
    if value == b"odd" and not Path({mended!r}).exists():
        {raises}
    return value
"""


@pytest.fixture
def worker(pipe: Pipe, tmp_path: Path, settings: MakeSettings) -> Iterator[Callable[[str], WorkerProcess]]:
    """Starts slot 0 of WORKER in a process; `odd` runs the given statement until the file `mended` exists."""
    started: list[WorkerProcess] = []

    def start(raises: str) -> WorkerProcess:
        file = tmp_path / "stopping_graph.py"
        file.write_text(WORKER.format(name=pipe.name, mended=str(tmp_path / "mended"), raises=raises))
        started.append(WorkerProcess(file, 0, settings().as_environment()))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_stopping_exception_commits_earlier_records_and_its_record_is_read_again(
    pipe: Pipe, cluster: Cluster, worker: Callable[[str], WorkerProcess], tmp_path: Path
) -> None:
    cluster.write(pipe.source, [b"0", b"bad", b"odd", b"3"])
    for raises, status in (  # each start reads the record again
        ("raise KeyError('gone')", 1),
        ("raise SinkUnavailable('the disk is full: make room')", 3),
        ("raise ks.Stop('enough')", 0),
    ):
        stopped = worker(raises)
        assert stopped.wait() == status, stopped.text
        cluster.await_markers(pipe.target, pipe.errors)
        assert (pipe.outputs, pipe.committed, pipe.dead_letters) == ([b"0", b"bad"], 2, [])
    (tmp_path / "mended").touch()
    mended = worker("pass")
    pipe.await_committed(4)
    mended.send(signal.SIGTERM)
    assert mended.wait() == 0, mended.text
    cluster.await_markers(pipe.target, pipe.errors)
    assert (pipe.outputs, pipe.dead_letters) == ([b"0", b"bad", b"odd", b"3"], [])


def test_exit_inside_a_function_ends_with_status_1_and_delivers_nothing_twice(
    pipe: Pipe, cluster: Cluster, worker: Callable[[str], WorkerProcess], tmp_path: Path
) -> None:
    cluster.write(pipe.source, [b"0", b"odd", b"2"])
    stopped = worker("raise SystemExit(0)")
    assert stopped.wait() == 1, stopped.text
    assert "ended by SystemExit: 0 (reading" in stopped.text
    assert pipe.dead_letters == []
    (tmp_path / "mended").touch()
    worker("pass")
    pipe.await_committed(3)
    assert (pipe.outputs, pipe.dead_letters) == ([b"0", b"odd", b"2"], [])


def await_failure(slot: RunningSlot) -> BaseException | None:
    """Waits until a slot has ended by itself, and returns its exception; a slot that does not end is stopped."""
    try:
        wait_until(lambda: not slot.thread.is_alive(), "the slot ends")
    finally:
        slot.stop()
    return slot.failure


FRAMEWORK = [errors.KStreamsError, errors.Replaced, errors.ClientError, errors.Abortable, errors.Fenced]


def test_framework_error_raised_by_a_function_stops_the_worker_and_discards_the_step(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings
) -> None:
    calls: list[type[Exception]] = []

    def function(value: bytes) -> bytes:
        if value == b"odd":
            calls.append(kind)
            raise kind("from the function")
        return value

    cluster.write(pipe.source, [b"0", b"odd", b"2"])
    for kind in FRAMEWORK:
        failure = await_failure(RunningSlot(pipe.graph(function), settings()))
        assert type(failure) is kind
        cluster.await_markers(pipe.target)
        assert (pipe.outputs, pipe.committed, pipe.dead_letters) == ([b"0"], 1, []), kind
    assert calls == FRAMEWORK, "each is raised once"


@pytest.mark.long  # in the quick tier, test_runner.py has these results
@pytest.mark.parametrize("result", [b"no dict", {"unknown": b"1"}], ids=["no dict", "unknown topic"])
def test_fork_result_without_a_declared_topic_stops_the_worker_by_name(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings, name: str, result: Any
) -> None:
    cluster.create(f"{name}.second")
    cluster.write(pipe.source, [b"0"])
    graph = ks.Graph(name, errors=pipe.errors)
    to = [graph.topic(pipe.target), graph.topic(f"{name}.second")]
    graph.map(graph.topic(pipe.source), to=to, id="step")(lambda value: result)
    failure = await_failure(RunningSlot(graph, settings()))
    assert isinstance(failure, errors.GraphError)
    assert "'step'" in str(failure)
    assert (pipe.outputs, pipe.committed, pipe.dead_letters) == ([], 0, [])


class Switch:
    """A function that raises at the value `odd` until it is mended, and records the values it returned."""

    def __init__(self, error: Exception) -> None:
        self.error, self.mended = error, False
        self.seen: list[bytes] = []

    def __call__(self, value: bytes) -> bytes:
        if value == b"odd" and not self.mended:
            raise self.error
        self.seen.append(value)
        return value


def declare(kind: str, pipe: Pipe, switch: Switch, guarantee: str = "exactly_once") -> tuple[ks.Graph, list[str]]:
    """Creates a graph of one processor `step` of this kind; returns the graph and its inputs."""
    graph = ks.Graph(pipe.name, errors=pipe.errors, stop_on=Rejected, guarantee=guarantee)
    source, other, target = (graph.topic(t) for t in (pipe.source, f"{pipe.name}.other", pipe.target))
    if kind == "map":
        graph.map(source, to=target, id="step")(switch)
    elif kind == "generator":

        @graph.map(source, to=target, id="step")
        def generate(value: bytes) -> Iterator[bytes]:
            yield switch(value)

    elif kind == "batch":
        graph.map(source, to=target, id="step", batch=True)(lambda values: [switch(v) for v in values])
    elif kind == "sink":
        graph.sink(source, id="step")(switch)
    elif kind == "join":
        graph.join(source, other, by="order", to=target, id="step")(lambda a, b: switch(a))
    else:
        graph.alts(source, other, to=target, id="step")(switch)
    return graph, [pipe.source, *([other.name] if kind in ("join", "alts") else [])]


UNHANDLED, STOP = Rejected("unhandled"), ks.Stop("enough")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        pytest.param(
            kind,
            error,
            id=f"{kind}-{'stop' if error is STOP else 'unhandled'}",
            marks=() if is_quick else pytest.mark.long,
        )
        # each kind once in the quick tier: a runner ends at both alike; the tests above and below have a map
        for is_quick, cells in [
            (True, [("generator", STOP), ("batch", STOP), ("sink", STOP), ("join", UNHANDLED), ("alts", UNHANDLED)]),
            (False, [("map", UNHANDLED), ("batch", UNHANDLED), ("alts", STOP)]),
        ]
        for kind, error in cells
    ],
)
def test_exactly_once_stop_in_mid_batch_then_a_new_start_delivers_each_record_once(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings, kind: str, error: Exception
) -> None:
    cluster.create(f"{pipe.name}.other")
    values = [str(i).encode() for i in range(20)] + [b"odd"] + [str(i).encode() for i in range(21, 30)]
    others = [f"o{i}".encode() for i in range(30)]
    cluster.write(pipe.source, values)
    cluster.write(f"{pipe.name}.other", others)
    switch = Switch(error)
    graph, inputs = declare(kind, pipe, switch)
    failure = await_failure(RunningSlot(graph, settings()))
    assert failure is (None if isinstance(error, ks.Stop) else error)
    if kind != "batch":
        assert cluster.committed(pipe.group, pipe.source) == {0: 20}
    assert pipe.dead_letters == []
    switch.mended = True
    with running(graph, settings()):
        for topic in inputs:
            cluster.await_committed(pipe.group, topic, {0: 30})
    cluster.await_markers(pipe.target, pipe.errors)
    assert pipe.dead_letters == []
    expected = values + (others if kind == "alts" else [])
    if kind == "sink":
        assert switch.seen == values, "the records before the stop are not processed again"
    else:
        assert Counter(pipe.outputs) == Counter(expected)
        assert [value for value in pipe.outputs if value in values] == values


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_stop_loses_and_repeats_nothing_under_each_guarantee(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings, guarantee: str
) -> None:
    cluster.create(f"{pipe.name}.other")
    values = [b"0", b"1", b"odd", b"3", b"4"]
    cluster.write(pipe.source, values)
    switch = Switch(ks.Stop("enough"))
    graph, _ = declare("map", pipe, switch, guarantee)
    assert await_failure(RunningSlot(graph, settings())) is None
    cluster.await_markers(pipe.target)
    assert pipe.outputs == [b"0", b"1"]
    assert pipe.committed == 2, "neither the record that raised nor the later ones are committed"
    switch.mended = True
    with running(graph, settings()):
        pipe.await_committed(5)
        wait_until(lambda: len(pipe.outputs) >= 5, "the rest")
    assert pipe.outputs == values


@pytest.mark.parametrize("kind", ["map", "batch"])
def test_at_most_once_stop_while_functions_run_loses_and_repeats_nothing(
    pipe: Pipe, cluster: Cluster, settings: MakeSettings, kind: str
) -> None:
    gate, waiting = threading.Event(), threading.Event()

    def function(value: bytes) -> bytes:
        if value == b"1":
            waiting.set()
            assert gate.wait(WAIT)
        return value

    cluster.write(pipe.source, [b"0", b"1", b"2"])
    graph = ks.Graph(pipe.name, guarantee="at_most_once")
    source, target = graph.topic(pipe.source), graph.topic(pipe.target)
    if kind == "batch":
        graph.map(source, to=target, id="step", batch=True)(lambda values: [function(value) for value in values])
    else:
        graph.map(source, to=target, id="step")(function)
    with running(graph, settings()) as (slot,):
        assert waiting.wait(WAIT)
        slot.slot.stop()
        gate.set()
    with running(graph, settings()):
        cluster.write(pipe.source, [b"3"])
        wait_until(lambda: b"3" in pipe.outputs, "the next record")
    assert pipe.outputs == [b"0", b"1", b"2", b"3"]
