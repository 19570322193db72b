"""Graphs, inputs and journals that are changed over a delivery whose worker died before its commit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import Settings
from kstreams_py.processing.journal.records import RecordType, type_of
from tests.system.command import Finished, kstreams
from tests.system.harness import Cluster, WorkerProcess, wait_until

GRAPH = """
import os, signal
from pathlib import Path
import kstreams_py as ks
from kstreams_py.kafka.producer import KafkaProducer

commit = KafkaProducer.commit_transaction

def commit_or_die(self):
    if Path({dies!r}).exists() and not self._id.endswith(".journal"):
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self)

KafkaProducer.commit_transaction = commit_or_die
graph = ks.Graph({name!r})
one, two, out, more = (graph.topic("{name}." + end) for end in ("one", "two", "out", "more"))

@graph.{declaration}
def copy(value):
    return {result}
"""

FORK = 'map(one, to=[out, more], persistence="journal")', "{out: value, more: value}"
MAP = 'map(one, to=out, persistence="journal")', "value"
ALTS = 'alts(one, two, to=out, persistence="journal")', "value"

Declaration = tuple[str, str]

REMEDY = "decide where it goes on, and set it (`kstreams recover reset "


class Site:
    """Topics, and a graph whose declaration changes; its worker dies before a commit of outputs once `dies` exists."""

    def __init__(self, directory: Path, name: str, settings: Settings, partitions: int) -> None:
        self.name, self.group, self.journal = name, f"{name}.copy", f"__ks.{name}.copy.journal"
        self.one, self.two, self.out, self.more = (f"{name}.{end}" for end in ("one", "two", "out", "more"))
        self.cluster = Cluster(settings.bootstrap_servers)
        self.cluster.create(self.one, self.two, self.out, self.more, partitions=partitions)
        self._partitions = partitions
        self.environment = settings.as_environment()
        self._directory, self._dies = directory, directory / "dies"
        self.file = directory / "changed_graph.py"
        self._started: list[WorkerProcess] = []
        self._written = 0

    def write(self, count: int) -> None:
        """Writes so many records, each with the next number."""
        new = range(self._written, self._written + count)
        for partition in range(self._partitions):
            values = [b"%d" % n for n in new if n % self._partitions == partition]
            self.cluster.write(self.one, values, partition=partition)
        self._written += count

    def create_input_again(self) -> None:
        """Deletes an input, and creates it again without a record."""
        self.cluster.delete(self.one)
        self.cluster.create(self.one, partitions=self._partitions)

    def read_journal(self, partition: int) -> list[Any]:
        return [m for m in self.cluster.read(self.journal) if m.partition() == partition]

    def start(self, declaration: Declaration) -> WorkerProcess:
        text = GRAPH.format(dies=str(self._dies), name=self.name, declaration=declaration[0], result=declaration[1])
        self.file.write_text(text, encoding="utf-8")
        self._started.append(WorkerProcess(self.file, 0, self.environment))
        return self._started[-1]

    def deliver(self, declaration: Declaration, count: int) -> WorkerProcess:
        """Runs a worker until the output has so many records, and stops it."""
        worker = self.start(declaration)
        wait_until(lambda: len(self.cluster.values(self.out)) >= count or worker.process.poll() is not None, "outputs")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.text
        return worker

    def die_before_the_commit(self, declaration: Declaration) -> None:
        """Runs a worker until it dies with its attempt recorded and its outputs not committed."""
        self._dies.touch()
        assert self.start(declaration).wait() == -signal.SIGKILL
        self._dies.unlink()
        self.cluster.await_markers(self.journal)
        assert type_of(self.cluster.read(self.journal)[-1]) == RecordType.OUTPUT

    def refuse(self, declaration: Declaration, reason: str) -> None:
        """Runs a worker that ends with status 5 and this reason, and writes nothing."""
        before = self.values()
        refused = self.start(declaration)
        assert refused.wait() == 5, refused.text
        assert reason in refused.text
        assert self.values() == before
        self.operate("slots", "release", self.graph, 0)

    @property
    def graph(self) -> str:
        return f"{self.file}:graph"

    def operate(self, *arguments: object) -> Finished:
        ended = kstreams(*arguments, environment=self.environment)
        assert ended.status == 0, ended
        return ended

    def reset(self, *targets: object) -> None:
        self.operate("recover", "reset", self.graph, "copy", *targets, "--yes")

    def values(self) -> tuple[list[bytes | None], list[bytes | None]]:
        return self.cluster.values(self.out), self.cluster.values(self.more)

    def kill(self) -> None:
        for worker in self._started:
            worker.kill()


@pytest.fixture
def new_site(tmp_path: Path, name: str, settings: Callable[..., Settings]) -> Iterator[Callable[[int], Site]]:
    """Makes a site whose topics have so many partitions."""
    made: list[Site] = []

    def make(partitions: int) -> Site:
        made.append(Site(tmp_path, name, settings(session_timeout_ms=6_000), partitions))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def site(new_site: Callable[[int], Site]) -> Site:
    return new_site(1)


def numbers(*found: int) -> list[bytes]:
    return [b"%d" % number for number in found]


# Graphs.


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            FORK,
            MAP,
            (
                "a delivery from {0}.one@3 to {0}.one@5 may not be committed, and the processor no longer writes to "
                "'{0}.more': start it once with the outputs that it had: " + REMEDY
            ),
        ),
        (
            MAP,
            ALTS,
            (
                "a delivery of '{0}.one' was not committed, and the processor reads '{0}.one', '{0}.two' now: start it "
                "once with the inputs that it had: " + REMEDY
            ),
        ),
    ],
    ids=["an output less", "an input more"],
)
def test_graph_changed_over_an_open_delivery_ends_until_the_one_before_delivers_it(
    site: Site, before: Declaration, after: Declaration, reason: str
) -> None:
    site.write(3)
    site.deliver(before, 3)
    site.write(2)
    site.die_before_the_commit(before)
    site.refuse(after, reason.format(site.name))
    site.deliver(before, 5)
    site.write(1)
    site.deliver(after, 6)
    both = numbers(0, 1, 2, 3, 4)
    assert site.values() == ([*both, b"5"], both if before is FORK else [])


@pytest.mark.long
def test_processor_of_another_id_is_told_of_the_one_that_has_read_its_input(site: Site) -> None:
    site.write(2)
    site.deliver(MAP, 2)
    renamed = site.deliver((MAP[0].replace("to=", "id='copier', to="), "value"), 4)
    file = min(os.path.relpath(site.file), str(site.file), key=len)  # as it is shown
    assert (
        f"copier: begins to read {site.one}, which the undeclared processor 'copy' has read: if "
        f"this is its new name, stop it, and give it the id 'copy' back, or the positions of group {site.group} "
        f"(`kstreams recover reset {file} copier --to-offset {site.one}:0:2`)"
    ) in renamed.text


# Inputs.


@pytest.mark.long
def test_input_created_again_over_an_open_delivery_ends_the_worker_until_a_reset(site: Site) -> None:
    site.write(3)
    site.deliver(MAP, 3)
    site.create_input_again()
    site.write(2)
    site.deliver(MAP, 5)
    site.write(2)
    site.die_before_the_commit(MAP)
    site.create_input_again()
    site.write(2)
    site.refuse(
        MAP,
        f"journal {site.journal}[0]: a delivery was not committed, and '{site.one}' was deleted and created again "
        f"since: {REMEDY}",
    )
    site.reset("--to-beginning")
    site.deliver(MAP, 7)
    assert site.values() == (numbers(0, 1, 2, 3, 4, 7, 8), [])


@pytest.mark.long
def test_input_that_is_shortened_below_a_snapshot_ends_the_worker_until_a_reset(site: Site) -> None:
    site.write(3)
    site.deliver(MAP, 3)
    site.write(2)
    site.die_before_the_commit(MAP)
    site.cluster.delete_records(site.one)
    site.write(2)
    site.refuse(MAP, f"{site.one}[0]: the records at the committed offset were deleted before they were read")
    site.reset("--to-beginning")
    site.deliver(MAP, 5)
    assert site.values() == (numbers(0, 1, 2, 5, 6), [])


# Journals.


def test_journals_that_are_damaged_end_the_worker_until_a_reset_and_nothing_is_lost(
    new_site: Callable[[int], Site],
) -> None:
    """Of four partitions: cut off, tampered with, an attempt without its snapshot, and emptied."""
    site = new_site(4)
    site.write(8)
    site.deliver(MAP, 8)
    newest: list[Any] = [site.read_journal(number)[-1] for number in range(4)]
    whole = [m.value() for m in newest]
    header = [("ks-type", b"attempt-output")]
    site.cluster.write(site.journal, [whole[0][:-3]], partition=0, headers=header)
    tampered = whole[1][:5] + bytes([whole[1][5] ^ 1]) + whole[1][6:]
    site.cluster.write(site.journal, [tampered], partition=1, headers=header)
    site.cluster.delete_records(site.journal, 2, newest[2].offset())
    site.cluster.delete_records(site.journal, 3)
    site.write(4)
    reasons = [
        f"{site.journal}[0]@{newest[0].offset() + 2} is not a record of a journal: ",
        f"offset {newest[1].offset() + 2}: it is an attempt at a snapshot other than {{'{site.one}': 0}}",
        f"offset {newest[2].offset()}: it is of type attempt-output, and there is no snapshot before it",
        f"all its records before offset {newest[3].offset() + 2} were deleted",
    ]
    status = kstreams("recover", "status", site.graph, "--json", environment=site.environment)
    found = [json.loads(line) for line in status.out.splitlines()]
    assert (status.status, [task["refused"] for task in found]) == (1, [True] * 4)
    for number, (task, reason) in enumerate(zip(found, reasons, strict=True)):
        assert f"journal {site.journal}[{number}]: {reason}" in task["next"]
        assert REMEDY in task["next"]
    site.refuse(MAP, reasons[0])
    committed = site.cluster.committed(site.group, site.one)
    assert committed == dict.fromkeys(range(4), 2)
    site.reset(*(each for number in range(4) for each in ("--to-offset", f"{site.one}:{number}:2")))
    site.deliver(MAP, 12)
    assert sorted(site.values()[0], key=lambda v: int(v or b"")) == numbers(*range(12))
