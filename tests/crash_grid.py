"""The grid of crash points: a processor of each kind dies at each point of a delivery, which happens once all the same.

The crash points have the names of the algorithm's description. Two of them, after the indices are collected and after
the hash is computed, have no request of their own: a process that dies there leaves what the next point leaves.

======  ==========================================  =========  =====================================
point   the process dies                            kinds      the next start takes the branch
======  ==========================================  =========  =====================================
CP00    idle, the inputs not read                   all        of the delivery before
CP01    before the snapshot is sent                 all        of the delivery before
CP02    the snapshot's commit arrives late          all        1b
CP03    the snapshot is durable                     all        1b
CP04    before the first input is decoded           all        1b (alts: 1c)
CP05    between two inputs                          joins      1b
CP06    before the choice is sent                   alts       1b
CP07    the commit of the choice arrives late       alts       1c
CP08    the choice is durable                       alts       1c
CP09    in the function                             all        1b (alts: 1c)
CP10    the function has returned                   outputs    1b (alts: 1c)
CP11    the transaction has begun                   writing    1b (alts: 1c)
CP12    outputs are written                         writing    1b (alts: 1c)
CP12b   one of two outputs is written               forks      1b (alts: 1c)
CP13    before the attempt is sent                  writing    1b (alts: 1c)
CP14    the attempt's commit arrives late           writing    3b
CP15    the attempt is durable                      writing    3b
CP16    the commit of the outputs arrives late      writing    3a
CP16b   the commit has no answer                    writing    3a
CP17    the outputs are committed                   writing    3a
CP18    before the attempt-nil is sent              nothing    1b (alts: 1c)
CP19    the commit of the attempt-nil arrives late  nothing    1f, 3a
CP20    the attempt-nil is durable                  nothing    1f, 3a
======  ==========================================  =========  =====================================

CP21 to CP25 are CP11 to CP17 where the function raises and there is a topic of dead letters, by branch 1e; CP26 is CP20
where there is none. CP28 is each point with an exception in place of the crash, after which the process ends its
clients. CP29 is the process that is frozen at CP15, or at CP18, is replaced and wakes up. CP30 is one that writes to
another cluster, is frozen at CP15 and wakes up when another slot has its task: that has fenced its producer, as the
group cannot refuse its commit. A retry takes no snapshot, and adds nothing to the journal before its attempt but
choices that it lacks: where it dies before, the branch of the attempt before is taken again.

Between each death and the next start, `kstreams recover status` names the branch that the start takes, or a transaction
that is open. Each recovery is run twice, is equal, and appends nothing.

The grid is run in memory (tests/simulation/test_grid.py) and on a real broker (tests/system/test_grid.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import kstreams_py as ks
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.processing.worker import Worker
from kstreams_py.records import Positions, Step, TopicPartition

KINDS: Final = ("map", "join", "fork", "join-fork", "alts", "alts-fork", "sink", "alts-sink")
"""The kinds of processors; the sink joins two inputs."""


@dataclass(frozen=True)
class Case:
    """A processor and what its function does.

    - `does`: "output", "none" or "raise".
    - `errors`: there is a topic of dead letters.
    - `journal`: None for persistence by the transaction alone.
    - `cluster`: where its outputs and dead letters are; "" with its inputs.
    """

    kind: str
    does: str
    errors: bool
    journal: ks.Journal | None
    cluster: str = ""

    @property
    def is_alts(self) -> bool:
        return self.kind.startswith("alts")

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("a",) if self.kind in ("map", "fork") else ("a", "b")

    @property
    def outputs(self) -> tuple[str, ...]:
        return () if "sink" in self.kind else ("x", "y") if "fork" in self.kind else ("x",)

    @property
    def written(self) -> tuple[str, ...]:
        """The topics that a set of inputs leaves one record in."""
        if self.does == "raise":
            return ("dead",) if self.errors else ()
        return self.outputs if self.does == "output" else ()


def give(case: Case) -> bool:
    """Whether the function of a case returns an output; raises what it raises."""
    if case.does == "raise":
        raise LookupError("on purpose")
    return case.does == "output"


def declare(
    case: Case, name: str, work: Callable[[tuple[bytes, ...], Step], bytes | None], serde: Any, prefix: str = ""
) -> ks.Graph:
    """The graph of a case: its processor `p` calls `work` with the values that it reads.

    - `serde`: of the inputs.
    - `prefix`: of the names of all topics.
    """
    graph = ks.Graph(name)
    inputs = [graph.topic(prefix + topic, value=serde) for topic in case.inputs]
    outputs = [graph.topic(prefix + topic, cluster=case.cluster) for topic in case.outputs]
    options: Any = {"id": "p", "persistence": case.journal or "transaction"}
    if case.errors:
        options["errors"] = graph.topic(f"{prefix}dead", value=ks.dead_letters(), cluster=case.cluster)

    def returned(values: tuple[bytes, ...], step: Step) -> Any:
        value = work(values, step)
        return value if value is None or len(outputs) < 2 else dict.fromkeys(outputs, value)

    def of_one(value: bytes, step: Step) -> Any:
        return returned((value,), step)

    def of_two(value: bytes, other: bytes, step: Step) -> Any:
        return returned((value, other), step)

    function: Any = of_two if len(inputs) > 1 and not case.is_alts else of_one
    if not outputs:
        graph.sink(*inputs, alts=case.is_alts, **options)(function)
    elif case.is_alts:
        graph.alts(*inputs, to=outputs, **options)(function)
    elif len(inputs) > 1:
        graph.join(*inputs, by="order", to=outputs, **options)(function)
    else:
        graph.map(inputs[0], to=outputs, **options)(function)
    return graph


JOURNALED: Final = ("CP01", "CP02", "CP03", "CP06", "CP07", "CP08")
"""Points that persistence by the transaction alone does not have."""


def cases(journal: ks.Journal | None, cluster: str = "") -> Iterator[Case]:
    for kind in KINDS:
        for does in ("output", "none", "raise"):
            for errors in (True, False):
                # what a sink returns is ignored, and only its dead letters are on another cluster
                if not ("sink" in kind and (does == "output" or (cluster and not errors))):
                    yield Case(kind, does, errors, journal, cluster)


def cells(case: Case) -> list[str]:
    """The points that a process of the case can die at."""
    found = ["CP00", "CP01", "CP02", "CP03", "CP04", "CP09", "CP29"]
    found += ["CP05"] if len(case.inputs) > 1 and not case.is_alts else []
    found += ["CP06", "CP07", "CP08"] if case.is_alts else []
    if not case.written:
        return [*found, "CP18", "CP19", "CP20"]
    found += ["CP11", "CP12", "CP13", "CP14", "CP15", "CP16", "CP16b", "CP17"]
    found += ["CP10"] if case.does == "output" else []
    found += ["CP30"] if case.cluster else []
    return [*found, "CP12b"] if len(case.written) > 1 else found


DELIVERED: Final = ("CP16", "CP16b", "CP17", "CP19", "CP20")
"""Points at which the delivery is committed."""

NOTHING, SNAPSHOT, CHOICES, ATTEMPT = range(4)
"""What a journal has of a delivery that is not committed: each follows the one before."""


def recorded_by(point: str, case: Case) -> int:
    """What of its delivery a process records until it dies at a point where that is not committed."""
    if point in ("CP00", "CP01"):
        return NOTHING
    if point in ("CP14", "CP15"):
        return ATTEMPT
    return SNAPSHOT if point in ("CP02", "CP03", "CP06") or not case.is_alts else CHOICES


def branch_after(point: str, case: Case, earlier: Sequence[str]) -> str:
    """The branch of the start after a process that died at a point.

    - `earlier`: the points at which the attempts before it died.
    """
    newest = "1f" if not case.written else "1d" if case.does == "output" else "1e"
    if point in ("CP29", "CP30"):  # of the process that replaces it
        point = "CP15" if case.written else "CP18"
    recorded = max(recorded_by(each, case) for each in (*earlier, point))
    if point in DELIVERED or recorded == NOTHING:  # of the delivery before
        return f"{newest}, 2, 3a"
    return {SNAPSHOT: "1b", CHOICES: "1c", ATTEMPT: f"{newest}, 2, 3b"}[recorded]


UNDECIDED: Final = {"CP02": "CP01", "CP07": "CP06", "CP14": "CP13", "CP16": "CP15", "CP19": "CP18"}
"""The points at which a request is on its way, each with the one whose branch is taken if the request is lost."""


def exists(point: str, case: Case, earlier: Sequence[str]) -> bool:
    """Whether an attempt has this point: what earlier ones have recorded is not recorded again."""
    if point not in JOURNALED:
        return True
    if case.journal is None:
        return False
    recorded = max((recorded_by(each, case) for each in earlier), default=NOTHING)
    return recorded < (SNAPSHOT if point in ("CP01", "CP02", "CP03") else CHOICES)


IN_JOURNAL: Final = ("CP01", "CP06", "CP13", "CP18")
"""Points at which a transaction of the journal is open."""


def hides(point: str, case: Case, earlier: Sequence[str]) -> bool:
    """Whether a process that dies at a point leaves a transaction open that hides what the next start decides by.

    - `earlier`: the points at which the attempts before it died.
    """
    if case.journal is None:  # the offsets are sent before the outputs
        return point in ("CP11", "CP12", "CP12b", "CP13", "CP15", "CP18")
    looks = any(recorded_by(each, case) == ATTEMPT for each in earlier)  # for an attempt beside the outputs
    return point in (*IN_JOURNAL, "CP14", "CP15") or (bool(case.cluster) and looks and point == "CP12")


def is_possible(case: Case, earlier: Sequence[str]) -> bool:
    """Whether attempts of a case can die at these points, one after the other."""
    return all(point in cells(case) and exists(point, case, earlier[:number]) for number, point in enumerate(earlier))


def recover_twice(worker: Worker, unseen: Callable[[], AbstractContextManager[None]]) -> None:
    """Lets a worker recover twice each time, as if it died in between: both are equal, and append nothing.

    - `unseen`: requests within it are not points at which a process dies.
    """
    if not isinstance(worker._journal, DeliveryJournal):
        return
    journal, recover = worker._journal, worker._journal.recover

    def ends(positions: Positions) -> Positions:
        journals = {TopicPartition(journal.topic, tp.partition) for tp in positions}
        return journal._cluster.ends(journals, committed=False)

    def recover_and_compare(positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        with unseen():
            before = ends(positions)
        first = recover(positions), dict(journal.snapshots), dict(journal.choices)
        with unseen():
            second = recover(positions), dict(journal.snapshots), dict(journal.choices)
            assert second == first
            assert ends(positions) == before, "a recovery appends nothing"
        return second[0]

    journal.recover = recover_and_compare  # type: ignore[method-assign]
