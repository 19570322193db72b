"""Deliveries through a journal on a real broker, in worker processes that are killed, frozen and replaced."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.processing.journal import deliveries
from kstreams_py.processing.journal.records import OutputPlace, Unit, newest_unit, type_of
from tests.system.app import MakeApp, MakeSettings, app_factory
from tests.system.harness import Cluster, await_joined, running, wait_until
from tests.system.recorder import Record

ONE_BY_ONE = ks.Journal(batch=1)


ONE_OR_MANY = {"one by one": "persistence=ks.Journal(batch=1)", "batch": "persistence='journal'"}


def quick(size: str) -> pytest.MarkDecorator:
    """A unit of one input set or of many; the other size is long: recovery reads the same records of both."""
    sizes = [pytest.param(value, marks=() if each == size else pytest.mark.long) for each, value in ONE_OR_MANY.items()]
    return pytest.mark.parametrize("new_app", sizes, indirect=True, ids=list(ONE_OR_MANY))


each_size = pytest.mark.parametrize("new_app", ONE_OR_MANY.values(), indirect=True, ids=list(ONE_OR_MANY))


@pytest.fixture
def new_app(request: pytest.FixtureRequest, tmp_path: Path, name: str, settings: MakeSettings) -> Iterator[MakeApp]:
    """Apps of a processor with a journal."""
    with app_factory(tmp_path, name, settings, options=request.param) as make:
        yield make


def units_of(cluster: Cluster, journal: str) -> list[tuple[str, Unit]]:
    """The units of a journal with one partition, each after the types of its records.

    An alts that has read more records may extend its choices: several in a row are named once.
    """
    records: list[Any] = cluster.read(journal)
    begins = [at for at, m in enumerate(records) if type_of(m) == "snapshot"]
    found = []
    for begin, end in itertools.pairwise([*begins, len(records)]):
        unit = newest_unit(records[begin:end], 0)
        assert unit is not None
        types = " ".join(map(type_of, records[begin:end]))
        found.append((re.sub("(snapshot-alts )+", "snapshot-alts ", types), unit))
    return found


def types_of(cluster: Cluster, journal: str) -> list[str]:
    return [type_of(m) for m in cluster.read(journal)]


def places_in(cluster: Cluster, *topics: str) -> list[OutputPlace]:
    """The places of all records of topics, with the hashes in their headers."""
    found: list[Any] = [m for topic in topics for m in cluster.read(topic)]
    return [OutputPlace(m.topic(), m.partition(), m.offset(), dict(m.headers())["ks-hash"]) for m in found]


# What is recorded.


def test_journal_has_each_delivery_with_the_places_of_its_outputs(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    source, left, right, errors = (f"{name}.{end}" for end in ("in", "left", "right", "errors"))
    cluster.create(source, left, right, errors)
    cluster.write(source, [b"both", b"none", b"fails", b"left"])
    graph = ks.Graph(name, errors=errors)
    topics = [graph.topic(left), graph.topic(right)]

    @graph.map(graph.topic(source), to=topics, persistence=ONE_BY_ONE)
    def split(value: bytes) -> dict[str, bytes] | None:
        if value == b"fails":
            raise ValueError(value)
        return {"both": {left: value, right: value}, "none": {}, "left": {left: value}}[value.decode()]

    with running(graph, settings()):
        cluster.await_committed(f"{name}.split", source, {0: 4})
    journal = f"__ks.{name}.split.journal"
    assert (cluster.values(left), cluster.values(right)) == ([b"both", b"left"], [b"both"])
    (both, alone), (other,), (dead,) = (places_in(cluster, topic) for topic in (left, right, errors))
    found = [(types, u.snapshot.offsets, u.attempt) for types, u in units_of(cluster, journal)]
    assert [(types, begin, a and a.offsets, a and {*a.outputs}) for types, begin, a in found] == [
        ("snapshot attempt-output", {source: 0}, {source: 1}, {both, other}),
        ("snapshot attempt-nil", {source: 1}, {source: 2}, set()),
        ("snapshot attempt-error", {source: 2}, {source: 3}, {dead}),
        ("snapshot attempt-output", {source: 3}, {source: 4}, {alone}),
    ]


def test_journal_of_an_alts_has_its_choices_before_the_function_runs(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    a, b, target = (f"{name}.{end}" for end in "abx")
    cluster.create(a, b, target)
    cluster.write(a, [b"a0"])
    graph = ks.Graph(name)
    seen = []

    @graph.alts(graph.topic(a), graph.topic(b), to=graph.topic(target), persistence="journal")
    def merge(value: bytes, step: ks.Step) -> bytes:
        cluster.await_markers(f"__ks.{name}.merge.journal")
        seen.append((step.delivery_hash, types_of(cluster, f"__ks.{name}.merge.journal")))
        return value

    with running(graph, settings()):
        cluster.await_committed(f"{name}.merge", a, {0: 1})
    ((digest, before),) = seen
    assert before == ["snapshot", "snapshot-alts"]
    assert types_of(cluster, f"__ks.{name}.merge.journal") == [*before, "attempt-output"]
    assert places_in(cluster, target) == [OutputPlace(target, 0, 0, digest)]


@pytest.mark.parametrize(
    ("journal", "map_types"),
    [
        pytest.param(ONE_BY_ONE, {"snapshot attempt-output", "snapshot attempt-error"}, marks=pytest.mark.long),
        (ks.Journal(), {"snapshot attempt-output"}),
    ],
    ids=["one by one", "batch"],
)
def test_every_kind_delivers_whole_topics_once(
    cluster: Cluster, settings: MakeSettings, name: str, journal: ks.Journal, map_types: set[str]
) -> None:
    a, b, errors = (f"{name}.{end}" for end in ("a", "b", "errors"))
    kinds = ("map", "batch", "flat", "even", "odd", "join", "alts", "low", "high", "x", "y")
    outputs = {kind: f"{name}.{kind}" for kind in kinds}
    cluster.create(a, b, errors, *outputs.values())
    numbers = [b"%d" % n for n in range(10)]
    cluster.write(a, numbers)
    cluster.write(b, numbers)
    graph = ks.Graph(name, errors=errors)
    one, two = graph.topic(a), graph.topic(b)
    to = {kind: graph.topic(topic) for kind, topic in outputs.items()}
    stored = []

    def refuse_seven(value: bytes) -> bytes:
        if value == b"7":
            raise ValueError("seven")
        return value

    def repeat(value: bytes) -> Iterator[bytes]:
        yield value
        yield value + value

    graph.map(one, to=to["map"], id="map", persistence=journal)(refuse_seven)
    graph.map(one, to=to["batch"], id="batch", batch=True, persistence=journal)(lambda values: values)
    graph.map(one, to=to["flat"], id="flat", persistence=journal)(repeat)
    graph.map(one, to=[to["even"], to["odd"]], id="fork", persistence=journal)(
        lambda v: {outputs["odd" if int(v) % 2 else "even"]: v}
    )
    graph.join(one, two, by="order", to=to["join"], id="join", persistence=journal)(lambda v, w: v + w)
    graph.join(one, two, by="order", to=[to["low"], to["high"]], id="join-fork", persistence=journal)(
        lambda v, w: {outputs["low"]: v, outputs["high"]: w}
    )
    graph.alts(one, two, to=to["alts"], id="alts", persistence=journal)(lambda v: v)
    graph.alts(one, two, to=[to["x"], to["y"]], id="alts-fork", persistence=journal)(
        lambda v, step: {outputs["x" if step.topic == a else "y"]: v}
    )
    graph.sink(one, id="sink", persistence=journal)(lambda v, step: stored.append((v, step.delivery_hash)))
    with running(graph, settings()):
        for processor in graph.processors:
            for topic in processor.inputs:
                cluster.await_committed(f"{name}.{processor.id}", topic.name, {0: 10})
    found = {kind: cluster.values(topic) for kind, topic in outputs.items()}
    assert sorted(found.pop("alts"), key=lambda v: int(v or b"")) == [n for n in numbers for _ in range(2)]
    assert found == {
        "map": [n for n in numbers if n != b"7"],
        "batch": numbers,
        "flat": [value for n in numbers for value in (n, n + n)],
        "even": numbers[::2],
        "odd": numbers[1::2],
        "join": [n + n for n in numbers],
        "low": numbers,
        "high": numbers,
        "x": numbers,
        "y": numbers,
    }
    (dead,) = places_in(cluster, errors)
    assert int.from_bytes(dead.delivery_hash[8:]) == 7
    assert ([value for value, _ in stored], len({digest for _, digest in stored})) == (numbers, 10)
    units = {p.id: units_of(cluster, f"__ks.{name}.{p.id}.journal") for p in graph.processors}
    assert {kind: {types for types, _ in each} for kind, each in units.items()} == {
        "map": map_types,
        **{kind: {"snapshot attempt-output"} for kind in ("batch", "flat", "fork", "join", "join-fork")},
        **{kind: {"snapshot snapshot-alts attempt-output"} for kind in ("alts", "alts-fork")},
        "sink": {"snapshot attempt-nil"},
    }
    attempts = {kind: [unit.attempt for _, unit in each if unit.attempt] for kind, each in units.items()}
    for kind, each in units.items():
        ends = [attempt.offsets for attempt in attempts[kind]]
        assert [unit.snapshot.offsets for _, unit in each] == [dict.fromkeys(ends[0], 0), *ends[:-1]]
        assert ends[-1] == dict.fromkeys(ends[0], 10)
    named = {place for each in attempts.values() for attempt in each for place in attempt.outputs}
    assert named <= {*places_in(cluster, *outputs.values(), errors)}


def test_journal_stays_bounded(
    cluster: Cluster, settings: MakeSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "TRUNCATED_EVERY", 10)
    source, target = f"{name}.in", f"{name}.out"
    cluster.create(source, target)
    values = [b"%d" % n for n in range(25)]
    cluster.write(source, values)
    graph = ks.Graph(name)
    graph.map(graph.topic(source), to=graph.topic(target), id="copy", persistence=ONE_BY_ONE)(lambda value: value)
    with running(graph, settings()):
        cluster.await_committed(f"{name}.copy", source, {0: 25})
    assert cluster.values(target) == values
    kept = types_of(cluster, f"__ks.{name}.copy.journal")
    assert kept[:2] == ["snapshot", "attempt-output"]
    assert len(kept) <= 2 * 10


# Workers that die, are frozen, and are replaced.


@quick("one by one")
def test_worker_killed_in_a_unit_makes_it_again_at_its_snapshot_as_the_status_says(
    new_app: MakeApp, cluster: Cluster, name: str
) -> None:
    app = new_app(session_timeout_ms=2_500, transaction_timeout_ms=2_000)
    status = ("recover", "status", f"{app.file}:graph")
    app.write(5, 0, b"wait")
    app.write(5, 0)
    killed = app.start(0)
    app.await_waiting()
    app.send(killed, signal.SIGKILL)
    killed.wait()
    app.gate.touch()
    # until then the transaction of the worker that died hides how its unit ended
    wait_until(lambda: "waits for a transaction" not in app.operate(*status), "its transaction has ended")
    (task,) = [json.loads(line) for line in app.operate(*status, "--json").splitlines()]
    (unit,) = [unit for _, unit in units_of(cluster, f"__ks.{name}.copy.journal")[-1:]]
    assert (
        task["next"] == f"recovery 1b: makes the delivery again from {app.source}@{unit.snapshot.offsets[app.source]}"
    )
    worker = app.start(0)
    app.drain(worker)
    assert "copy: partition 0: recovery 1b" in worker.text
    app.verify()


@quick("batch")
def test_worker_frozen_in_a_unit_and_replaced_writes_to_neither_outputs_nor_journal(
    new_app: MakeApp, name: str
) -> None:
    app = new_app(session_timeout_ms=2_500, transaction_timeout_ms=2_000)
    app.write(5, 0, b"wait")
    frozen = app.start(0)
    app.await_waiting()
    app.send(frozen, signal.SIGSTOP)
    app.gate.touch()
    replacement = app.start(0)
    app.recorder.await_done(app.group, app.source)
    topics = f"__ks.{name}.copy.journal", app.target
    app.recorder.await_no_open_transaction(*topics)
    before = [app.recorder.ends(topic, "read_uncommitted") for topic in topics]
    app.send(frozen, signal.SIGCONT)
    assert frozen.wait() == 4, frozen.text
    assert [app.recorder.ends(topic, "read_uncommitted") for topic in topics] == before
    app.write(5, 0)
    app.drain(replacement)
    app.verify()


@pytest.mark.long
@each_size
def test_second_worker_of_a_slot_ends_the_first_which_says_so_and_loses_nothing(new_app: MakeApp) -> None:
    app = new_app()
    app.write(5, 0)
    first = app.start(0)
    app.recorder.await_done(app.group, app.source)
    second = app.start(0)
    app.write(5, 0)
    assert first.wait() == 4, first.text
    assert f"another worker has taken the slot of {app.group}.0 over" in first.text
    app.write(5, 0)
    app.drain(second)
    app.verify()


@pytest.mark.long
@each_size
def test_workers_killed_at_random_under_load_deliver_once_and_in_order(new_app: MakeApp) -> None:
    app = new_app(partitions=4, session_timeout_ms=3_000, transaction_timeout_ms=2_500)
    chance = random.Random(11)

    def record(number: int) -> Record:
        return app.source, b"%d" % number, b"%d" % (number % 40), -1

    with app.recorder.reading(app.target) as reader:
        with app.recorder.feeding(record, at_once=60, per_second=30):
            workers = [app.start(0), app.start(1)]
            for _ in range(6):
                reader.await_more(chance.randint(10, 40))
                slot = chance.randrange(2)
                app.send(workers[slot], signal.SIGKILL)
                workers[slot].wait()
                workers[slot] = app.start(slot)
            await_joined("copy", *workers)
        app.drain(*workers)
        reader.finish()
    app.verify()


# A journal that contradicts what was committed.

REMEDY = "decide where it goes on, and set it (`kstreams recover reset "


@pytest.mark.long  # in the quick tier, the table tests/hostile/own_topics.py
@quick("one by one")
def test_journal_with_a_foreign_record_ends_the_worker_and_nothing_is_lost(
    new_app: MakeApp, cluster: Cluster, name: str
) -> None:
    app, journal = new_app(), f"__ks.{name}.copy.journal"
    app.write(5, 0)
    app.drain(app.start(0))
    cluster.write(journal, [b"foreign"])
    app.write(5, 0)
    refused = app.start(0)
    assert refused.wait() == 5, refused.text
    assert f"copy: partition 0: journal {journal}[0]: {journal}[0]@" in refused.text
    assert " is not a record of a journal: its type is '': run the newer release of kstreams_py that" in refused.text
    assert f"shows who may write there): {REMEDY}" in refused.text
    graph = f"{app.file}:graph"
    app.operate("slots", "release", graph, 0)
    end = cluster.committed(app.group, app.source)[0]
    assert app.operate("recover", "reset", graph, "copy", "--to-offset", f"{app.source}:0:{end}", "--yes") == (
        f"copy: {app.source}[0]: {end} -> {end}, its journal begins there\nset\n"
    )
    worker = app.start(0)
    app.drain(worker)
    assert "copy: partition 0: recovery 1b" in worker.text
    app.verify()


@pytest.mark.long
@each_size
def test_committed_offsets_that_were_set_back_below_a_snapshot_end_the_worker(
    new_app: MakeApp, cluster: Cluster, name: str
) -> None:
    app = new_app(session_timeout_ms=2_500, transaction_timeout_ms=2_000)
    app.write(5, 0)
    app.drain(app.start(0))
    app.write(1, 0, b"wait")
    killed = app.start(0)
    app.await_waiting()
    app.send(killed, signal.SIGKILL)
    killed.wait()
    app.gate.touch()
    cluster.await_markers(f"__ks.{name}.copy.journal")
    begun = units_of(cluster, f"__ks.{name}.copy.journal")[-1][1].snapshot.offsets[app.source]
    cluster.set_committed(app.group, {(app.source, 0): 3})
    refused = app.start(0)
    assert refused.wait() == 5, refused.text
    assert (
        f"copy: partition 0: journal __ks.{name}.copy.journal[0]: the newest record is a snapshot at "
        f"{name}.in@{begun}, and the committed offsets are {name}.in@3: {REMEDY}"
    ) in refused.text
    cluster.set_committed(app.group, {(app.source, 0): begun})
    worker = app.start(0)
    app.drain(worker)
    assert "copy: partition 0: recovery 1b" in worker.text
    app.verify()


@pytest.mark.long
@each_size
def test_outputs_that_were_deleted_are_decided_by_committed_offsets_or_by_nobody(
    new_app: MakeApp, cluster: Cluster, name: str
) -> None:
    app, journal = new_app(session_timeout_ms=2_500, transaction_timeout_ms=2_000), f"__ks.{name}.copy.journal"
    app.write(5, 0)
    app.drain(app.start(0))
    cluster.delete_records(app.target)
    app.write(1, 0)
    after = app.start(0)
    app.drain(after)
    assert "copy: partition 0: recovery 1d, 2, 3a" in after.text
    assert cluster.values(app.target) == [b"5"], "nothing of the delivery is made again"
    cluster.delete_records(app.target)
    unit = units_of(cluster, journal)[-1][1]
    assert unit.attempt is not None
    assert (unit.snapshot.offsets, unit.attempt.offsets) == ({app.source: 5}, {app.source: 6})
    cluster.set_committed(app.group, {(app.source, 0): 2})
    refused = app.start(0)
    assert refused.wait() == 5, refused.text
    (place,) = unit.attempt.outputs
    assert (
        f"copy: partition 0: journal {journal}[0]: the newest record is an attempt-output from {app.source}@5 to "
        f"{app.source}@6, the committed offsets are {app.source}@2, and of its outputs: {place} may be deleted: it is "
        f"below the first offset of its partition, or its topic is compacted: {REMEDY}"
    ) in refused.text
    assert cluster.values(app.target) == []
    cluster.set_committed(app.group, {(app.source, 0): 5})
    again = app.start(0)
    app.drain(again)
    assert "copy: partition 0: recovery 1d, 2, 3b" in again.text
    assert cluster.values(app.target) == [b"5"]
