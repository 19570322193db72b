"""`kstreams recover audit` on a real broker: a killed graph is clean, and each defect made by hand is found."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kstreams_py.records import HASH_HEADER
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.operated import Site

GRAPH = """
def check(value):
    if value.endswith(b"7"):
        raise ValueError(value)
    return {topic("a"): value, topic("b"): value}


def twice(value):
    yield value
    yield value


dead = graph.name + ".dead"
graph.map(topic("in"), to=[topic("a"), topic("b")], id="fork", errors=dead, **options)(check)
graph.join(topic("a"), topic("b"), by="order", to=topic("joined"), id="join", **options)(lambda a, b: a + b)
graph.alts(topic("a"), topic("b"), to=topic("out"), id="alts", **options)(lambda value: value)
graph.map(topic("joined"), to=topic("out"), id="twice", **options)(twice)
"""

RECORDS = 200
FAILED = RECORDS // 10
WRITTEN = RECORDS - FAILED
CLEAN = [
    f"fork: {RECORDS:,} inputs, {2 * WRITTEN:,} outputs, {FAILED:,} dead letters: clean",
    f"join: {2 * WRITTEN // 2:,} inputs, {WRITTEN:,} outputs, 0 dead letters: clean",
    f"alts: {2 * WRITTEN:,} inputs, {2 * WRITTEN:,} outputs, 0 dead letters: clean",
    f"twice: {WRITTEN:,} inputs, {2 * WRITTEN:,} outputs, 0 dead letters: clean",
]


@pytest.mark.parametrize(
    "options",
    [
        # on a broker, both have markers between their records; in the quick tier, unit/test_audit.py has the rest
        pytest.param("", id="transaction", marks=pytest.mark.long),
        pytest.param("persistence='journal'", id="journal"),
    ],
)
def test_graph_that_was_killed_is_clean_and_each_defect_is_found(
    cluster: Cluster, name: str, tmp_path: Path, options: str
) -> None:
    here = Site(cluster, name, tmp_path, f"options = dict({options})\n{GRAPH}", "in", "a", "b", "joined", "dead")
    here.write("in", *(b"%d" % number for number in range(RECORDS)))

    def await_outputs(worker: WorkerProcess, count: int) -> None:
        def arrived() -> bool:
            assert worker.process.poll() is None, worker.text
            return len(here.outputs) >= count

        wait_until(arrived, f"{count} outputs")

    for goal in (WRITTEN // 2, 2 * WRITTEN):
        worker = WorkerProcess(here.file, 0, here.environment)
        try:
            await_outputs(worker, goal)
        finally:
            worker.kill()
    here.run_until(4 * WRITTEN)
    assert audit(here, "--every") == (0, CLEAN)

    topic, source = here.topic("out"), here.topic("in")
    original, cause = twin(here)
    cluster.write(topic, [b"copy"], headers=original.headers())
    cluster.write(topic, [b"plain"])
    *_, copy, plain = cluster.read(topic)
    status, lines = audit(here, "--processor", "alts", "--processor", "twice")
    assert (status, sorted(line for line in lines if line.startswith("  "))) == (
        1,
        [
            f"  duplicate: {topic}[0]@{copy.offset()} is one more output of {cause}",
            f"  foreign: {topic}[0]@{plain.offset()} has no delivery hash",
        ],
    )

    places = [m.offset() for m in cluster.read(source)]
    cluster.set_committed(f"{name}.fork", {(source, 0): places[-3]})
    report = fork(here, "--every")
    by_journal = {"undecidable": 1} if options else {}  # these offsets contradict it
    assert (report["clean"], report["counts"], places_of(report, "offsets inconsistent")) == (
        False, {"offsets inconsistent": 3} | by_journal, [(source, offset) for offset in places[-3:]],
    )  # fmt: skip
    assert [topic for topic, _ in places_of(report, "undecidable")] == [f"__ks.{name}.fork.journal"] * len(by_journal)
    here.write("in", b"1", b"2")
    first, last = [m.offset() for m in cluster.read(source)][-2:]
    cluster.set_committed(f"{name}.fork", {(source, 0): last + 1})
    report = fork(here, "--every")
    assert (report["clean"], report["counts"], places_of(report, "lost")) == (
        False, {"lost": 2}, [(source, first), (source, last)],
    )  # fmt: skip


def audit(here: Site, *arguments: str) -> tuple[int, list[str]]:
    """The exit status and the lines of the audit."""
    ended = here.recover("audit", *arguments)
    assert ended.err == ""
    return ended.status, ended.out.splitlines()


def fork(here: Site, *arguments: str) -> dict[str, Any]:
    """The report of the processor that reads the first topic."""
    (line,) = here.recover("audit", "--json", "--processor", "fork", *arguments).out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def places_of(report: dict[str, Any], kind: str) -> list[tuple[str, int]]:
    return [(each["topic"], each["offset"]) for each in report["anomalies"] if each["kind"] == kind]


def twin(here: Site) -> tuple[Any, str]:
    """An output and its input: the last 8 bytes of its delivery hash are the offset, and their values are equal.

    Most records of `a` and `b` have their value and offset in both: an output of one of those does not tell which.
    """
    inputs = defaultdict[tuple[int, bytes], list[str]](list)
    for name in ("a", "b", "joined"):
        for m in here.cluster.read(here.topic(name)):
            inputs[m.offset(), m.value()].append(f"{here.topic(name)}[0]@{m.offset()}")
    for output in here.cluster.read(here.topic("out")):
        found = inputs[int.from_bytes(dict(output.headers())[HASH_HEADER][8:], "big"), output.value()]
        if len(found) == 1:
            return output, found[0]
    raise AssertionError("each output may be of several inputs")
