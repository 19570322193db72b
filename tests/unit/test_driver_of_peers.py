"""testing/peers.py: a graph of channels as a job on peers that are killed and frozen, and whose frames are lost."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import sinks
from kstreams_py.errors import Retriable, SinkUnavailable, UserMistake
from kstreams_py.jobs.cluster.commands import Found
from kstreams_py.jobs.messengers.frames import ENVELOPE, PROTOCOL, Hello, encode_frame
from kstreams_py.jobs.messengers.pins import acker_of
from kstreams_py.jobs.peers.audits import SegmentAudit
from kstreams_py.jobs.peers.entries import Entries
from kstreams_py.jobs.peers.function_task import FunctionTask
from kstreams_py.jobs.peers.input_task import InputTask
from kstreams_py.log_fields import FOLD
from kstreams_py.running.peer_reports import PeerReports
from kstreams_py.testing import MemorySource, TestDriver, memory_peers
from kstreams_py.testing.peers import Peers
from tests.tables import each_case

TASKS = ["read-rows", "split", "merge", "fetch", "store"]
VALUES = range(12)
ROWS = [(-value, value * 10) for value in VALUES if value != 7]
REFUSED = [(7, "merge: ValueError: no 7")]


def shop() -> ks.Graph:
    """A fork, an alts that refuses an input, calls that overlap, and a gather at the sink."""
    graph = ks.Graph("shop")
    rows = graph.source("rows", MemorySource())
    small, large, merged, fetched = (graph.channel(name) for name in ("small", "large", "merged", "fetched"))
    graph.map(rows, to=[small, large], id="split")(lambda value: {small if value < 6 else large: value})

    @graph.alts(small, large, to=merged)
    def merge(value: int) -> int:
        if value == 7:
            raise ValueError("no 7")
        return value

    @graph.map(merged, to=fetched, concurrency=2)
    async def fetch(value: int) -> int:
        await asyncio.sleep(0)
        return value * 10

    target = sinks.SQLite("no.db", table="t", columns=["a", "b"])
    graph.sink(merged, fetched, to=target, id="store")(lambda value, ten: (-value, ten))
    return graph


def loaded(count: int = 5, seed: int = 0) -> tuple[TestDriver, Peers]:
    driver = TestDriver(shop())
    driver.source("rows").add(*VALUES)
    return driver, driver.peers(count, seed=seed)


def check_stored_once(driver: TestDriver, peers: Peers) -> None:
    """Each row is stored once, nothing is left over, and the job has completed."""
    assert (sorted(driver.rows("store")), driver.source("rows").left) == (sorted(ROWS), [])
    assert driver.source("rows").refused == REFUSED
    assert peers.status == "shop-1  completed"
    assert {*peers.tasks.values()} == {None}


def deaths_of(driver: TestDriver) -> int:
    """Returns how many attempts at inputs have ended with their peer."""
    return sum(kept.deaths for kept in driver.source("rows").kept["shop:rows"].values())


def test_peers_store_what_one_process_stores_and_complete_each_job() -> None:
    driver, peers = loaded(7)
    with driver:
        assert (driver.rows("store"), driver.source("rows").left) == ([], [*VALUES])
        assert {*peers.tasks.values()} >= {*TASKS}
        assert peers.status == "shop-1  running, 7 peers"
        driver.run()
        check_stored_once(driver, peers)
        driver.source("rows").add(20)
        driver.run()
        assert (driver.rows("store")[-1], peers.status) == ((-20, 200), "shop-2  completed")


def kill(driver: TestDriver, peers: Peers, task: str) -> None:
    peers.kill(task)


def lose_machine(driver: TestDriver, peers: Peers, task: str) -> None:
    killed = peers.kill(task, replaced=False)
    assert killed not in peers.tasks
    peers.add()


def freeze_past_the_time_out(driver: TestDriver, peers: Peers, task: str) -> None:
    peers.add()
    frozen = peers.freeze(task)
    driver.advance(10)
    peers.thaw(frozen)
    driver.step()
    driver.step()
    assert frozen not in peers.tasks, "it has joined under another id"


def freeze_for_a_moment(driver: TestDriver, peers: Peers, task: str) -> None:
    frozen = peers.freeze(task)
    driver.advance(2)
    peers.thaw()
    assert frozen in peers.tasks


def lose_frames(driver: TestDriver, peers: Peers, task: str) -> None:
    peers.lose(task, frames=3)


def lose_all_frames(driver: TestDriver, peers: Peers, task: str) -> None:
    peers.lose(task, seconds=5)


def test_task_whose_target_is_full_says_when_it_works_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing, turn = [2], FunctionTask.turn

    def fail(task: FunctionTask) -> bool:
        if task.id == "store" and task.waiting and failing[0]:
            failing[0] -= 1
            raise SinkUnavailable("no.db: database or disk is full: free space on its disk, then start again")
        return turn(task)

    monkeypatch.setattr(FunctionTask, "turn", fail)
    caplog.set_level(logging.INFO, "kstreams_py.jobs.peers.peer")
    driver, peers = loaded()
    with driver:
        driver.run()
        check_stored_once(driver, peers)
    away = "store: no.db: database or disk is full: free space on its disk; it tries again every 2 s"
    assert [each for each in caplog.messages if each.startswith("store:")] == [away, away, "store: it works again"]
    assert [getattr(each, FOLD)[:2] for each in caplog.records if hasattr(each, FOLD)][:1] == [
        ("repeated", "interruptions of store")
    ]


FAULTS = [kill, freeze_past_the_time_out, lose_frames, lose_machine, freeze_for_a_moment, lose_all_frames]


@pytest.mark.parametrize("fault", [*FAULTS[:3], *(pytest.param(each, marks=pytest.mark.long) for each in FAULTS[3:])])
@pytest.mark.parametrize("seeds", [range(2, 3), pytest.param(range(3, 30), marks=pytest.mark.long)], ids=len)
def test_fault_of_the_peer_of_each_task_stores_each_row_once(
    fault: Callable[[TestDriver, Peers, str], None], seeds: range
) -> None:
    deaths = 0
    for seed in seeds:
        for number, task in enumerate(TASKS):
            driver, peers = loaded(5 + seed % 3, seed)
            with driver:
                for _ in range(1 + (number + seed) % 4):
                    driver.step()
                fault(driver, peers, task)
                driver.run()
                check_stored_once(driver, peers)
                deaths += deaths_of(driver)
    # frames that are lost are sent again: no input is read again
    assert (deaths > 0) == (fault in (kill, lose_machine, freeze_past_the_time_out))


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 200), marks=pytest.mark.long)], ids=len)
def test_random_faults_of_peers_store_each_row_once(seeds: range) -> None:
    for seed in seeds:
        chance = Random(seed)
        driver, peers = loaded(chance.randint(5, 8), seed)
        with driver:
            for _ in range(4):  # at five deaths an input would rightly be refused
                driver.advance(chance.choice([0.1, 0.3, 1]))
                if peers.status.endswith("completed"):
                    break
                chance.choice(FAULTS)(driver, peers, chance.choice(TASKS))
            driver.run()
            check_stored_once(driver, peers)


@pytest.mark.parametrize("is_each", [False, pytest.param(True, marks=pytest.mark.long)])
def test_peer_that_dies_at_a_request_is_replaced_and_stores_each_row_once(*, is_each: bool) -> None:
    driver, peers = loaded()
    with driver:
        driver.run()
        points = driver.crash_points()
    by_name = {point.request: point for point in points}
    assert by_name.keys() == {"claim", "call", "connect_sink", "store", "ack", "refuse"}
    for point in points if is_each else by_name.values():  # the last of each name
        driver, peers = loaded()
        with driver:
            before = {*peers.tasks}
            driver.crash(point)
            assert len(before - peers.tasks.keys()) == len(peers.tasks.keys() - before) == 1
            driver.run()
            check_stored_once(driver, peers)


def test_lost_frames_between_two_peers_are_sent_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    driver, peers = loaded()
    with driver:
        peers.lose("merge", "store", seconds=60)
        for seconds, warnings in ((15, 0), (35, 1)):
            driver.advance(seconds)
            assert (driver.rows("store"), driver.source("rows").refused) == ([], REFUSED)
            found = re.findall(r"peer \S+ at \S+ does not answer, and is a member", caplog.text)
            assert len({*found}) == warnings
        driver.run()
        check_stored_once(driver, peers)
        assert deaths_of(driver) == 0


def test_peer_of_another_version_is_one_warning_and_its_frames_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    driver, peers = loaded()
    with driver:
        first, other = (peers._peers.peers[slot] for slot in (0, 1))
        reports = PeerReports(0)
        reports.begin(first, first._links, first._messenger)
        hello = encode_frame(Hello(PROTOCOL + 1, memory_peers.CLUSTER, other.me, first.me))
        for _ in range(3):
            first._links.take([(other.me, hello)], driver.clock())
            driver.step()
        why = f"peer {other.me} has version {PROTOCOL + 1} of the frames, and this peer {PROTOCOL}: start both with"
        assert [each for each in caplog.messages if each.startswith(why)] == [
            f"{why} the same version of kstreams_py; its frames are dropped"
        ]
        assert reports.look(driver.clock())[0].measures["frames:unexpected"] >= 3


def test_entries_of_one_reader_are_shared_by_the_ackers_of_all_readers() -> None:
    driver, peers = loaded(10, seed=2)
    with driver:
        tasks = list[InputTask]()
        while [len(each._ackers) for each in tasks] != [2, 2]:
            driver.step()
            tasks = [peer.task for peer in peers._peers.peers.values() if isinstance(peer.task, InputTask)]
            assert driver.source("rows").left, "both readers know of both ackers before the job is done"
        driver.source("rows").add(*range(100, 400))
        while (most := max((each.inputs.pending for each in tasks), key=len)) and len(most) < 200:
            driver.step()
            assert driver.source("rows").left, "200 inputs are under way at once"
        shares = Counter(map(acker_of, most.segments))
        assert {*shares} == {each._own for each in tasks}
        assert max(shares.values()) - min(shares.values()) <= 20


def test_run_on_peers_is_the_same_for_the_same_seed() -> None:
    def trace(seed: int) -> tuple[Any, ...]:
        driver, peers = loaded(6, seed)
        with driver:
            driver.step()
            names = peers.kill("split"), peers.freeze("merge")
            driver.run()
            return names, [*driver.cluster.faults.requests], driver.rows("store"), driver.clock()

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


def test_value_above_the_limit_of_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_peers, "Found", partial(Found, frame_max=1 << 20))
    graph = ks.Graph("files")
    texts = graph.channel("texts")
    graph.map(graph.source("rows", MemorySource()), to=texts, id="read")(lambda size: "x" * size)
    graph.sink(texts, to=sinks.SQLite("no.db", table="t", columns=["a"]), id="store")(lambda text: (len(text),))
    with TestDriver(graph) as driver:
        driver.source("rows").add(1_000, 1 << 20)
        driver.peers(3)
        driver.run()
        ((_, why),) = driver.source("rows").refused
        assert driver.rows("store") == [(1_000,)]
        assert f"a frame has at most {(1 << 20) - ENVELOPE}: return a reference to it" in why


def test_request_without_an_answer_and_attempts_are_waited_for_while_the_clock_moves() -> None:
    graph, calls = ks.Graph("shop"), Counter[int]()
    rows = graph.source("rows", MemorySource(), timeout=5.0)
    target = sinks.SQLite("no.db", table="t", columns={"a": int})

    @graph.sink(rows, to=target, retry=ks.Retry(backoff="2s..2h"))
    def store(value: int) -> tuple[int]:
        calls[value] += 1
        if value == 1 and calls[1] < 3:
            raise ConnectionError
        if value == 2 and calls[2] < 12:
            raise ConnectionError
        return (value,)

    with TestDriver(graph) as driver:
        driver.source("rows").add(1)
        driver.peers(2)
        driver.cluster.faults.inject("store", error=Retriable("no answer"), applied=False)
        driver.run()
        assert (driver.rows("store"), calls) == ([(1,)], {1: 3})
        driver.source("rows").add(2)
        driver.run()  # no attempt is made for more than a minute
        assert ([*driver.retrying], driver.source("rows").left) == (["store"], [2])


def test_topics_that_tasks_read_and_write_lose_no_record_on_peers() -> None:
    graph = ks.Graph("shop", value=ks.Json(), errors="dead")
    parsed = graph.channel("parsed")
    graph.map(graph.topic("in"), to=parsed, id="parse")(lambda value: 10 // value)
    graph.map(parsed, to=graph.topic("out"), id="write")(lambda value: value)
    for number, task in enumerate(("read-in", "parse", "write")):
        with TestDriver(graph, partitions=2) as driver:
            for value in (1, 0, 5):
                driver.send("in", value, partition=value % 2)
            peers = driver.peers(3)
            for _ in range(number):
                driver.step()
            peers.kill(task)
            driver.run()
            assert {*driver.values("out")} == {2, 10}
            assert {letter.value["processor"] for letter in driver.dead_letters()} == {"shop.parse"}
            assert {tp.partition: at for tp, at in driver.committed("in").items()} == {0: 1, 1: 2}
            assert peers.status == "shop-1  running, 3 peers"


def test_error_that_stops_the_job_is_raised_and_the_next_run_submits_it_again() -> None:
    graph, errors = ks.Graph("shop"), [LookupError("no table")]
    rows = graph.source("rows", MemorySource())

    @graph.sink(rows, stop_on=LookupError)
    def store(_: int) -> None:
        if errors:
            raise errors.pop()

    with TestDriver(graph) as driver:
        driver.source("rows").add(1)
        peers = driver.peers(2)
        with pytest.raises(UserMistake, match=r"^shop-1  killed: store: LookupError: no table$"):
            driver.run()
        driver.run()
        assert (driver.source("rows").left, peers.status) == ([], "shop-2  completed")


def test_job_that_has_lost_too_many_peers_is_told_and_goes_on_with_more() -> None:
    driver, peers = loaded()
    with driver:
        frozen = peers.freeze("merge")
        with pytest.raises(UserMistake) as raised:
            driver.run()
        waits = "shop-1  waiting: it has 5 tasks, and the cluster has 4 peers: start 1 more peer"
        assert str(raised.value) == f"nothing happens any more: {waits}; thaw() lets {frozen} go on"
        peers.thaw()
        driver.run()
        check_stored_once(driver, peers)
        for name in [*peers.tasks]:
            peers.kill(name, replaced=False)
        driver.source("rows").add(1)
        with pytest.raises(UserMistake, match=r"^no peer is left: add\(\) starts one$"):
            driver.run()


def kill_after_the_run(driver: TestDriver, peers: Peers) -> None:
    driver.run()
    peers.kill("store")


TOLD: list[tuple[Callable[[TestDriver, Peers], object], str]] = [
    (lambda _, peers: peers.kill(5), "there is no peer 5: there are 0, 1, 2, 3, 4"),
    (lambda _, peers: peers.kill("stor"), "there is no peer and no task 'stor': did you mean store?"),
    (lambda _, peers: peers.freeze("x"), "no task 'x': the tasks are read-rows, split, merge, fetch, store, the peers"),
    (lambda _, peers: peers.thaw("store"), "peer 'store' is not frozen: thaw takes the id that freeze has returned"),
    (lambda _, peers: peers.lose(0, frames=0), "frames=0, seconds=None: give at least one frame"),
    (lambda _, peers: peers.lose(1, 1), "1 and 1 are one peer: it sends no frames to itself"),
    (kill_after_the_run, "no peer has task 'store': shop-1  completed"),
    (lambda driver, _: driver.peers(5), "call peers() once, before run(), without slots="),
    (lambda driver, _: driver.crash(), "crash() needs a request: peers.kill(peer) kills a peer at once"),
    (lambda driver, _: driver.lose("ack"), "peers send acknowledgements in frames: lose them with peers.lose("),
]


@each_case(("act", "told"), TOLD)
def test_mistake_with_peers_is_told_with_the_remedy(act: Callable[[TestDriver, Peers], object], told: str) -> None:
    driver, peers = loaded()
    with driver, pytest.raises(UserMistake) as raised:
        act(driver, peers)
    assert told in str(raised.value)


def test_graph_or_number_that_makes_no_cluster_is_refused() -> None:
    graph = shop()
    with TestDriver(graph) as driver:
        with pytest.raises(UserMistake, match=r"^peers\(0\): give at least one$"):
            driver.peers(0)
        with pytest.raises(UserMistake) as raised:
            driver.peers(3)
        waits = "shop-1  waiting: it has 5 tasks, and the cluster has 3 peers: start 2 more peers"
        assert str(raised.value) == f"nothing happens any more: {waits}"
    graph.map(graph.topic("in"), to=graph.topic("out"), id="copy")(lambda value: value)
    with TestDriver(graph) as driver, pytest.raises(UserMistake, match=r"which peers do not run \(copy\)"):
        driver.peers(6)


def die_in_a_call() -> int:
    """One of two peers of `split` dies in its second call; returns how many attempts at inputs this has ended."""
    driver, peers = loaded(7)
    with driver:
        driver.crash("call", nth=2, applied=False)
        driver.run()
        check_stored_once(driver, peers)
        return deaths_of(driver)


def test_inputs_that_a_dead_peer_of_two_had_are_read_again_and_no_others() -> None:
    assert die_in_a_call() == len(VALUES) / 2


def test_mutation_of_peers_is_seen_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that look for no lost segment after a death leave its inputs under way for ever."""
    monkeypatch.setattr(SegmentAudit, "doubt", lambda *_: None)
    monkeypatch.setattr(Entries, "_doubt", lambda *_: [])
    with pytest.raises(UserMistake, match="nothing happens any more: shop-1  running, 7 peers"):
        die_in_a_call()
