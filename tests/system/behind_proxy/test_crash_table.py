"""The ambiguous cells of the crash table on a real broker: a request, or its answer, is lost on the way (KS-44).

A proxy drops the frame. The worker goes on, or it is killed before it knows. How often the output is there:

=================================  ============  =============  ============
lost                               at most once  at least once  exactly once
=================================  ============  =============  ============
Produce, alive                     1             1              1
Produce, killed                    0             1              1
answer to Produce, alive           1             1              1
answer to Produce, killed          1             2              1
OffsetCommit, alive                1             1
OffsetCommit, killed               1             2
answer to OffsetCommit, alive      1             1
answer to OffsetCommit, killed     0             1
TxnOffsetCommit, EndTxn, answers                                1
=================================  ============  =============  ============

Exactly once with a journal, each output is there once, whichever of its three transactions is struck.
With durability `leader` the broker does not recognize a repeated record: at least once, an answer that is lost doubles
the output. At most once refuses this durability; with `none` it repeats no request, and loses what is lost.
The cells without a proxy are in tests/simulation/test_crash_table.py.

The quick tier has each entry of the table that is not 1, and of those that are 1 a worker that goes on and one that is
killed: between them lies the same request, or its answer, that the client sends again. Workers of the other guarantees
that go on: below with durability `leader`, and in test_late_requests.py at most once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from tests.system.harness import Cluster, WorkerProcess, running, wait_until
from tests.system.proxy import Proxy, Rule, Side

GRAPH: Final = """
import kstreams_py as ks

graph = ks.Graph({name!r}, guarantee={guarantee!r}, durability={durability!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"), persistence={persistence!r})
def copy(value):
    return value
"""

CELLS: Final = [(side, fate) for side in ("request", "response") for fate in ("alive", "killed")]

COPIES: Final = {
    ("at_most_once", "Produce"): (1, 0, 1, 1),
    ("at_most_once", "OffsetCommit"): (1, 1, 1, 0),
    ("at_least_once", "Produce"): (1, 1, 1, 2),
    ("at_least_once", "OffsetCommit"): (1, 2, 1, 1),
    ("exactly_once", "Produce"): (1, 1, 1, 1),
    ("exactly_once", "TxnOffsetCommit"): (1, 1, 1, 1),
    ("exactly_once", "EndTxn"): (1, 1, 1, 1),
}
"""How often the output is there, in the order of CELLS."""


class App:
    """A graph of one copying processor behind the proxy, in a file and as an object."""

    def __init__(
        self,
        name: str,
        guarantee: str,
        durability: str,
        persistence: str,
        cluster: Cluster,
        proxy: Proxy,
        directory: Path,
    ) -> None:
        self.cluster, self.proxy = cluster, proxy
        self._is_answered = durability != "none"
        self._seen = len(proxy.seen)
        self.source, self.target, self.group = f"{name}.in", f"{name}.out", f"{name}.copy"
        self.cluster.create(self.source, self.target)
        self.file = directory / "copier.py"
        text = GRAPH.format(name=name, guarantee=guarantee, durability=durability, persistence=persistence)
        self.file.write_text(text)
        scope: dict[str, ks.Graph] = {}
        exec(text, scope)
        self.graph = scope["graph"]
        self.settings = Settings.load(
            bootstrap_servers=self.proxy.bootstrap_servers, schema_directory=directory, session_timeout_ms=30_000
        )

    def deliver(self, value: bytes) -> None:
        """Writes a record, and waits for its output."""
        self.cluster.write(self.source, [value])
        self.await_delivered(value)

    def await_delivered(self, value: bytes) -> None:
        wait_until(lambda: value in self.cluster.values(self.target), f"{value!r} is delivered")

    def lose(self, api: str, side: Side, nth: int = 1) -> None:
        """A worker that goes on loses a request or its answer, with the connection."""
        with running(self.graph, self.settings):
            self.begin(api)
            lost = self.proxy.drop(api, side=side, nth=nth)
            self.cluster.write(self.source, [b"struck"])
            self.await_caught(lost)
            self.deliver(b"last")
        assert len(lost.caught) == 1

    def lose_and_die(self, api: str, side: Side, nth: int = 1) -> None:
        """A worker is killed while it waits for an answer, which never comes; another one goes on."""
        worker = WorkerProcess(self.file, 0, self.settings.as_environment())
        try:
            self.begin(api)
            lost = self.proxy.drop(api, side=side, nth=nth, times=None, silent=True)
            self.cluster.write(self.source, [b"struck"])
            self.await_caught(lost)
            worker.send(signal.SIGKILL)
            assert worker.wait() == -signal.SIGKILL, worker.text
        finally:
            worker.kill()
        lost.lift()
        with running(self.graph, self.settings):
            self.deliver(b"last")

    def begin(self, api: str) -> None:
        """Delivers a first record and waits for all answers: the next request of this kind is for the next record."""
        self.deliver(b"first")
        self.cluster.await_committed(self.group, self.source, {0: 1})
        if self._is_answered or api != "Produce":
            wait_until(lambda: self._count(api, "response") == self._count(api, "request") > 0, f"the answer to {api}")

    def _count(self, api: str, side: Side) -> int:
        return sum((frame.api, frame.side) == (api, side) for frame in list(self.proxy.seen[self._seen :]))

    def await_caught(self, lost: Rule) -> None:
        wait_until(lambda: lost.caught, "the frame is lost")


NewApp = Callable[..., App]


@pytest.fixture
def new_app(name: str, proxied: tuple[Cluster, Proxy], proxy: Proxy, tmp_path: Path) -> NewApp:
    def make(guarantee: str, durability: str = "committed", persistence: str = "transaction") -> App:
        return App(name, guarantee, durability, persistence, proxied[0], proxy, tmp_path)

    return make


ONE_COPY: Final = (
    ("exactly_once", "TxnOffsetCommit", "request", "alive"),
    ("exactly_once", "EndTxn", "response", "killed"),
)
"""The entries of the quick tier that are 1."""


def cells() -> Iterator[Any]:
    for each, copies in COPIES.items():
        for cell, n in zip(CELLS, copies, strict=True):
            quick = n != 1 or (*each, *cell) in ONE_COPY
            yield pytest.param(*each, *cell, n, marks=() if quick else pytest.mark.long)


@pytest.mark.parametrize(("guarantee", "api", "side", "fate", "copies"), [*cells()])
def test_copies_are_those_of_the_crash_table_if_a_request_or_its_answer_is_lost(
    guarantee: str, api: str, side: Side, fate: str, copies: int, new_app: NewApp
) -> None:
    app = new_app(guarantee)
    (app.lose if fate == "alive" else app.lose_and_die)(api, side)
    assert app.cluster.values(app.target) == [b"first", *[b"struck"] * copies, b"last"]
    assert app.cluster.committed(app.group, app.source) == {0: 3}


@pytest.mark.parametrize(("side", "copies"), [pytest.param("request", 1, marks=pytest.mark.long), ("response", 2)])
def test_at_least_once_output_whose_answer_is_lost_is_doubled_by_the_leader_alone(
    side: Side, copies: int, new_app: NewApp
) -> None:
    app = new_app("at_least_once", "leader")
    app.lose("Produce", side)
    assert app.cluster.values(app.target) == [b"first", *[b"struck"] * copies, b"last"]
    assert app.cluster.committed(app.group, app.source) == {0: 3}


@pytest.mark.parametrize(
    ("api", "side", "copies"),
    [
        ("Produce", "request", 0),
        pytest.param("OffsetCommit", "request", 1, marks=pytest.mark.long),
        pytest.param("OffsetCommit", "response", 0, marks=pytest.mark.long),
    ],
)
def test_at_most_once_that_repeats_no_request_loses_what_is_lost_with_its_worker(
    api: str, side: Side, copies: int, new_app: NewApp
) -> None:
    app = new_app("at_most_once", "none")
    app.lose_and_die(api, side)
    assert app.cluster.values(app.target) == [b"first", *[b"struck"] * copies, b"last"]
    assert app.cluster.committed(app.group, app.source) == {0: 3}


@pytest.mark.parametrize(
    ("api", "nth", "fate", "side"),
    [
        ("EndTxn", 2, "killed", "response"),  # of the attempt
        *(
            pytest.param(*each, side, marks=pytest.mark.long)
            for side in ("request", "response")
            for each in (
                ("Produce", 1, "killed"),  # of the snapshot
                ("Produce", 2, "alive"),  # of the output
                ("EndTxn", 1, "alive"),
                ("EndTxn", 2, "killed"),
                ("EndTxn", 3, "alive"),  # of the outputs
                ("EndTxn", 3, "killed"),
            )
        ),
    ],
)
def test_exactly_once_with_a_journal_delivers_once_whatever_is_lost(
    api: str, nth: int, fate: str, side: Side, new_app: NewApp
) -> None:
    app = new_app("exactly_once", persistence="journal")
    (app.lose if fate == "alive" else app.lose_and_die)(api, side, nth)
    assert app.cluster.values(app.target) == [b"first", b"struck", b"last"]
    assert app.cluster.committed(app.group, app.source) == {0: 3}
