"""Whole clusters of peers: every effect once, nothing lost, whatever dies, freezes or goes away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kstreams_py.jobs.cluster import fold, planner
from kstreams_py.jobs.cluster.commands import FRAME_MAX, Leave, LeaveReason
from kstreams_py.jobs.cluster.state import JobPhase
from kstreams_py.jobs.peers.input_task import InputTask
from kstreams_py.sources.suspects import DEATHS_MAX, REASON
from kstreams_py.testing.request_faults import Crash
from tests.simulation.clusters import JOB, ClusterPlant, PeerConnection
from tests.simulation.jobs import Table
from tests.simulation.test_jobs import GRAPHS as GRAPHS_OF_JOBS
from tests.simulation.test_jobs import INPUTS, Declared


def declare_grouped(plant: ClusterPlant) -> Declared:
    """A task whose peers have keys of their own."""
    parsed, grouped = plant.graph.channel("parsed", group_by=lambda value: value % 10), plant.graph.channel("grouped")
    table = Table(plant)
    plant.graph.map(plant.rows, to=parsed, id="parse")(lambda value: value)

    @plant.graph.map(parsed, to=grouped)
    def work(value: int) -> int:
        plant.note_key(value % 10)
        return value

    plant.graph.sink(grouped, to=table, id="store")(lambda value: (value,))
    return [table], lambda value: [[value]]


GRAPHS = GRAPHS_OF_JOBS | {"grouped": declare_grouped}


def plant_of(graph: str, inputs: int = INPUTS, **options: Any) -> ClusterPlant:
    plant = ClusterPlant(range(inputs), **options)
    plant.tables, plant.rows_of = GRAPHS[graph](plant)
    return plant


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("peers", [6, 13])  # one peer of most tasks, and several of each
def test_peers_run_a_job_to_its_end(graph: str, peers: int) -> None:
    plant = plant_of(graph)
    plant.begin(peers)
    plant.finish_job()


@pytest.mark.parametrize("is_covered", [True, False])
def test_job_short_of_a_peer_reads_nothing(monkeypatch: pytest.MonkeyPatch, is_covered: bool) -> None:
    # OX-61, OX-62: without this rule, what an uncovered task would get waits where it was made, and does not expire
    if not is_covered:
        monkeypatch.setattr(planner, "share", lambda peers, demands, *_, **__: {each.job: peers for each in demands})
        monkeypatch.setattr(fold, "_is_ready", lambda *_: True)
    plant = plant_of("chain")
    plant.begin(2)
    plant.run_for(100)
    assert plant.job is not None
    phase, count = (JobPhase.WAITING, 0) if is_covered else (JobPhase.RUNNING, INPUTS)
    assert (plant.job.phase, plant.reads.total(), plant.tables[0].values) == (phase, count, [])
    plant.add()
    plant.finish_job()
    assert plant.reads.total() == INPUTS


def run_with_faults(graph: str, seeds: range) -> None:
    """Runs a graph by peers that die, freeze and join, for each seed."""
    for seed in seeds:
        plant = plant_of(graph, seed=seed)
        chance = plant.chance
        plant.begin(chance.randint(6, 10))
        ends = DEATHS_MAX - 1  # one more, and an input that was at each of these peers would rightly be refused
        while not plant.has_ended and ends:
            plant.run_for(chance.choice([0.1, 0.5, 2]))
            names = [*plant.peers]
            match chance.randrange(6):
                case 0 if len(names) > 2:
                    ends -= 1
                    plant._orphan()
                    plant.die_now(chance.choice(names), is_seen=chance.random() < 0.7)
                case 1:
                    ends -= 1
                    plant._orphan()
                    plant.frozen[chance.choice(names)] = plant.now + chance.choice([1, 8, 20])
                case 2 | 3 if len(names) < 12:
                    plant.add()
                case 4:
                    plant.log.is_away = not plant.log.is_away
                case 5:
                    one, other = chance.sample(names, 2)
                    plant.cut(one, other, chance.choice([2, 40, 90]))
        plant.log.is_away = False
        while len(plant.peers) < 8:
            plant.add()
        plant.finish_job()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.long)], ids=len)
def test_peers_that_die_freeze_and_join_leave_each_effect_once(graph: str, seeds: range) -> None:
    run_with_faults(graph, seeds)


CUTS = [
    # two tasks, and how many peers: of 6, each task has two, of 5 the last one has one
    *(("read-rows", "parse", 6), ("parse", "store", 6), ("parse", "store", 5)),
    *(("read-rows", "read-rows", 6), ("read-rows", "store", 6)),
]


def cut_under_way(graph: str, ends: tuple[str, str], peers: int, seed: int) -> ClusterPlant:
    """Runs a graph until rows are stored, and cuts the network between peers of two tasks."""
    plant = plant_of(graph, 10 * INPUTS, seed=seed)
    plant.begin(peers)
    plant.run_until(lambda: len(plant.tables[0].values) > 2 * INPUTS)
    one, other = (plant.cluster.replica.peers_of(JOB, end) for end in ends)
    plant.cut(one[0], other[-1])
    return plant


@pytest.mark.parametrize(("one", "other", "peers"), CUTS)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 20), marks=pytest.mark.long)], ids=len)
def test_job_goes_around_two_peers_that_never_reach_each_other(one: str, other: str, peers: int, seeds: range) -> None:
    for seed in seeds:
        plant = cut_under_way("chain", (one, other), peers, seed)
        plant.run_for(10)
        # one more joins, has nothing yet, and dies: this is charged to none of those that wait
        plant.cluster.called = plant.add().me
        plant.run_for(0.5)
        plant.die_now(plant.cluster.called)
        plant.finish_job()
        assert (plant.replayed, plant.deaths, max(plant.reads.values()) <= 2) == ({}, 1, True)


@pytest.mark.parametrize("ends", [("parse", "work"), ("work", "read-rows")], ids="-".join)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.long)], ids=len)
def test_values_of_a_group_wait_while_no_peer_reaches_theirs(ends: tuple[str, str], seeds: range) -> None:
    for seed in seeds:
        plant = cut_under_way("grouped", ends, 4, seed)  # one peer of each task
        plant.run_for(130)
        links = [link for peer in plant.peers.values() for link in peer._links]
        assert max(len(link._items) + len(link._control.frames) for link in links) < 40, "control is bounded"
        assert not plant.has_ended, "what is stored may not be acknowledged"
        plant.cluster.losses.clear()
        repaired = plant.now
        plant.finish_job()
        assert plant.now < repaired + 25, "inputs whose acknowledgements were lost wait for no timeout"
        assert plant.replayed == {}


def test_peer_in_a_long_call_is_not_unreachable_and_keeps_its_inputs() -> None:
    plant = plant_of("chain", 10 * INPUTS)
    plant.begin(6)
    plant.run_until(lambda: len(plant.tables[0].values) > 2 * INPUTS)
    plant.cluster.called = plant.find("parse")
    plant.run_for(100)
    assert 3 * INPUTS < len(plant.tables[0].values) < 10 * INPUTS
    plant.cluster.called = None
    plant.finish_job()
    assert plant.reads.total() == 10 * INPUTS


@pytest.mark.parametrize("task", ["read-rows", "parse"])
def test_turn_after_the_membership_has_read_that_its_peer_left_ends_the_task(task: str) -> None:
    plant = plant_of("chain", 10 * INPUTS)
    plant.begin(6)
    plant.run_until(lambda: len(plant.tables[0].values) > 2 * INPUTS)
    peer = plant.peers[plant.cluster.replica.peers_of(JOB, task)[0]]
    plant.cluster.append("accuser", Leave(peer.me, LeaveReason.SILENT))
    peer.membership.turn(plant.now)
    peer.turn()
    assert (peer.membership.has_left, peer.task) == (True, None)
    plant.finish_job()


def test_inputs_that_a_dead_peer_had_are_read_again_and_no_others() -> None:
    plant = plant_of("chain", seed=1)
    plant.begin(6)
    plant.run_until(lambda: plant.job is not None and plant.job.phase is JobPhase.RUNNING)
    name = plant.find("parse")
    assert name is not None
    plant.frozen[name] = 100.0
    plant.run_for(1)
    unstored = {*range(INPUTS)} - {value - 1 for value in plant.tables[0].values}
    assert {*plant.reads} == {*range(INPUTS)}
    assert 0 < len(unstored) < INPUTS, "the other peer of the task goes on"
    plant._orphan()
    plant.die_now(name)
    plant.finish_job()
    assert plant.replayed == dict.fromkeys(unstored, 1)


def test_source_that_learns_of_inputs_wakes_the_peer_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plant, wakes = plant_of("chain"), list[Any]()
    plant.begin(3)
    plant.run_until(lambda: plant.job is not None and plant.job.phase is JobPhase.RUNNING)
    assert [peer.is_polled for peer in plant.peers.values()] == [
        isinstance(peer.task, InputTask) for peer in plant.peers.values()
    ]
    plant = plant_of("chain")
    monkeypatch.setattr(PeerConnection, "wake_by", lambda _, wake: wakes.append(wake), raising=False)
    plant.begin(3)
    plant.run_until(lambda: plant.job is not None and plant.job.phase is JobPhase.RUNNING)
    readers = [peer for peer in plant.peers.values() if isinstance(peer.task, InputTask)]
    assert wakes == [reader._messenger.wake for reader in readers]
    assert not any(peer.is_polled for peer in plant.peers.values())
    plant.finish_job()


def test_gather_with_many_branches_of_one_input_does_not_stand_still() -> None:
    plant, parts = ClusterPlant(range(2)), 1_500
    left, right, both, split = (plant.graph.channel(name) for name in ("left", "right", "both", "parts"))

    @plant.graph.map(plant.rows, to=split)
    def divide(value: int) -> Iterator[tuple[int, int]]:
        yield from ((value, number) for number in range(parts))

    plant.graph.map(split, to=left, id="first")(lambda part: part)
    plant.graph.map(split, to=right, id="second")(lambda part: part)
    plant.graph.gather(left, right, to=both, id="pair")(lambda one, other: (one, other))
    table = Table(plant)
    plant.graph.sink(both, to=table, id="store")(lambda pair: (pair[0],))
    plant.tables, plant.rows_of = [table], lambda value: [[(value, number) for number in range(parts)]]
    plant.begin(6)
    plant.finish_job()


@pytest.mark.parametrize(
    ("peers", "deadly", "seed"),
    [
        *((3, {7}, 0), (7, {7}, 0), (4, {7, 17}, 0), (4, {7, 17}, 3), (6, {7, 17}, 1), (8, {3, 11, 19}, 0)),
        *(pytest.param(n, {7, 17}, seed, marks=pytest.mark.long) for n in (4, 6, 8, 10) for seed in range(3, 28)),
    ],
)
def test_inputs_that_kill_their_peers_are_refused_and_no_others(peers: int, deadly: set[int], seed: int) -> None:
    """Several peers read: the inputs of all of them meet where functions are called."""
    plant = ClusterPlant(range(INPUTS), seed=seed)
    parsed, table = plant.graph.channel("parsed"), Table(plant)

    @plant.graph.map(plant.rows, to=parsed)
    def parse(value: int) -> int:
        if value in deadly:
            plant._orphan()
            raise Crash
        return value

    plant.graph.sink(parsed, to=table, id="store")(lambda value: (value,))
    plant.tables, plant.rows_of = [table], lambda value: REASON if value in deadly else [[value]]
    plant.begin(peers)
    while not plant.has_ended:
        plant.run_for(1)
        assert plant.now < 300 * len(deadly), plant.describe()
        while len(plant.peers) < peers:
            plant.add()
    assert plant.refused().keys() == deadly
    assert plant.tables[0].values == [value for value in range(INPUTS) if value not in deadly]


@pytest.mark.parametrize("seed", [1, 3, *(pytest.param(each, marks=pytest.mark.long) for each in range(4, 40))])
def test_key_that_moves_has_one_peer_within_an_epoch_and_old_frames_go_back(seed: int) -> None:
    """One peer has all keys: no other gets any while the job runs, and another gets half when it starts again."""
    plant = plant_of("grouped", 20 * INPUTS, seed=seed)
    plant.begin(4)
    for _ in range(6):
        plant.add()
    plant.run_until(lambda: len(plant.cluster.replica.ready_peers_of(JOB, "store")) == 3)
    plant.run_for(0.2)
    plant._orphan()
    for name in plant.cluster.replica.peers_of(JOB, "store"):
        plant.die_now(name)
    plant.finish_job()
    assert sum(peer._links.counts().returned for peer in plant.peers.values()) > 0


def test_frames_of_a_peer_that_was_found_silent_are_refused_and_counted() -> None:
    plant = plant_of("grouped")
    plant.begin(8)
    plant.run_until(lambda: plant.find("work") is not None)
    plant.run_for(0.1)
    name = plant.cluster.replica.ready_peers_of(JOB, "work")[0]
    plant._orphan()
    plant.frozen[name] = plant.now + 10
    plant.run_for(8)
    counts = [peer._messenger.counts for peer in plant.peers.values()]
    before = sum(each.strangers for each in counts)
    plant.peers[name].turn()  # it wakes up, and has not read yet that it has left
    assert sum(each.strangers for each in counts) > before
    plant.finish_job()


UNSENDABLE: list[tuple[Any, str]] = [
    # the value, and why its input is refused: {0} sends it to {1}
    (bytes(FRAME_MAX), "{0}: EncodeError: a channel cannot send a value of 8388614 bytes to task {1!r} of another"),
    (print, "{0}: EncodeError: a channel cannot send a value of type builtins.builtin_function_or_method to another"),
    ([7], "store: GraphError: group_by= returned a list, which has no hash that is the same on all peers: return a"),
]


@pytest.mark.parametrize(("sender", "reader"), [("read-rows", "parse"), ("parse", "store")])
@pytest.mark.parametrize(("value", "why"), UNSENDABLE, ids=["large", "of a type", "without a group"])
def test_value_that_cannot_be_sent_is_refused_at_its_source(value: Any, why: str, sender: str, reader: str) -> None:
    plant, bad = ClusterPlant([value if sender == "read-rows" and key == 7 else key for key in range(INPUTS)]), 7
    group_by = (lambda each: each) if isinstance(value, list) else None
    parsed, table = plant.graph.channel("parsed", group_by=group_by), Table(plant)
    plant.graph.map(plant.rows, to=parsed, id="parse")(lambda each: value if each == bad else each)
    plant.graph.sink(parsed, to=table, id="store")(lambda each: (each,))
    plant.begin(6)
    plant.run_until(lambda: plant.has_ended)
    assert plant.job is not None
    assert (plant.job.phase, table.values) == (JobPhase.COMPLETED, [key for key in range(INPUTS) if key != bad])
    ((key, reason),) = plant.refused().items()
    assert (key, str(reason).startswith(why.format(sender, reader))) == (bad, True), reason


def test_error_that_stops_a_job_ends_it_for_all_peers() -> None:
    plant = ClusterPlant(range(INPUTS))
    parsed = plant.graph.channel("parsed")

    @plant.graph.map(plant.rows, to=parsed, stop_on=(LookupError,))
    def parse(value: int) -> int:
        if value == 7:
            raise LookupError("no table")
        return value

    plant.graph.sink(parsed, to=Table(plant), id="store")(lambda value: (value,))
    plant.begin(6)
    plant.run_until(lambda: plant.has_ended)
    assert plant.job is not None
    assert (plant.job.phase, plant.job.why) == (JobPhase.KILLED, "parse: LookupError: no table")
    plant.run_for(3)
    assert [peer.task for peer in plant.peers.values()] == [None] * 6


def test_inputs_whose_acker_has_moved_and_died_are_read_again() -> None:
    """Two peers read; one of them gets another job, and dies there."""
    plant = plant_of("chain")
    plant.begin(4)
    plant.run_until(lambda: plant.job is not None and plant.job.phase is JobPhase.RUNNING)
    store = plant.find("store")
    assert store is not None
    plant.frozen[store] = plant.now + 3  # inputs are under way, and stay so
    plant.run_for(1)
    readers = [name for name, peer in plant.peers.items() if isinstance(peer.task, InputTask)]
    assert len(readers) == 2
    plant._orphan()
    plant.die_now(readers[1])
    plant.add()
    plant.finish_job()
