"""The tools of `kstreams demo jobs`: planned faults, who ran what when, each check that can fail, the report."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_py.demo.channel_checks import TablesFound, rate
from kstreams_py.demo.jobs import command
from kstreams_py.demo.jobs import peers as demo_peers
from kstreams_py.demo.jobs.checks import DoneFault, JobsRun, describe_jobs, judge_jobs, look_up_all
from kstreams_py.demo.jobs.faults import FaultKind, PlannedFault, plan_faults
from kstreams_py.demo.jobs.peers import ClusterWatch, DemoPeer, DemoPeers
from kstreams_py.demo.jobs.stage import JobsOptions
from kstreams_py.demo.jobs.timeline import Logged, Stay, TaskSpan, Timeline, build_timeline
from kstreams_py.errors import SettingsError, WorkersFailed
from kstreams_py.jobs.cluster import commands
from kstreams_py.jobs.cluster.commands import Command, Entry, JobId, Leave, LeaveReason, PeerId
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.kafka_log import KafkaLog, append_command
from kstreams_py.jobs.cluster.state import JobPhase
from kstreams_py.running.peers import PeerOptions
from kstreams_py.settings import Settings
from kstreams_py.testing import MemoryCluster
from tests.departures import row

P0, P1, P2 = (PeerId(f"p{number}") for number in range(3))
FIRST, SECOND = JobId("aircraft-1"), JobId("aircraft-2")
DAY = [row(1, tailnum="N10156"), row(2, tailnum="N9"), row(3, tailnum=None), row(4, arr_delay=None)]
EXPECTED = {"aircraft": look_up_all(DAY), "weather": rate(DAY)}
PLANNED = Counter({FaultKind.KILL: 1, FaultKind.FREEZE: 1, FaultKind.JOIN: 1, FaultKind.RESUBMIT: 1})


def submit(job: JobId) -> commands.SubmitJob:
    return commands.SubmitJob(
        job, "aircraft", "f", (commands.TaskSpec("read-departures", is_input=True), commands.TaskSpec("look_up"))
    )


LOG: list[tuple[int, Command]] = [
    (0, commands.Found(VERSION, "demo", commands.Scheduler.ROUND_ROBIN)),
    (1_000, commands.AcceptJoin(P0, "", "", {"aircraft": "f"})),
    (2_000, commands.AcceptJoin(P1, "", "", {"aircraft": "f"})),
    (3_000, submit(FIRST)),
    (3_000, commands.Volunteer(P0, 3)),
    (4_000, commands.SignalReady(P0, FIRST, 1)),
    (5_000, commands.SignalReady(P1, FIRST, 1)),
    (6_000, Leave(P1, LeaveReason.DIED)),
    (7_000, commands.AcceptJoin(P2, "", "", {"aircraft": "f"})),
    (7_000, commands.Volunteer(P2, 8)),
    (8_000, commands.KillJob(FIRST)),
    (9_000, submit(SECOND)),
    (9_000, commands.Volunteer(P0, 11)),
    (10_000, Leave(P0, LeaveReason.SILENT)),
    (10_500, commands.CompleteTask(SECOND, "read-departures")),
    (11_000, commands.CompleteTask(SECOND, "look_up")),
]
ENTRIES: list[Logged] = [(n, at, Entry(f"a{n}", 1, each)) for n, (at, each) in enumerate(LOG)]
TIMELINE = build_timeline([*ENTRIES, (len(LOG), 11_500, None)], 12_000)
FAULTS = [
    DoneFault(FaultKind.KILL, 5_900, "peer 2 (process 7), look_up of aircraft-1", 2, P1),
    DoneFault(FaultKind.JOIN, 6_500, "peer 3", 3),
    DoneFault(FaultKind.RESUBMIT, 8_000, "aircraft-1; its graph is submitted again", job=FIRST),
    DoneFault(FaultKind.FREEZE, 9_200, "peer 1 (process 6), read-departures of aircraft-2", 1, P0, seconds=1.0),
]


def watch(entries: list[tuple[int, Command]]) -> ClusterWatch:
    """Returns the watch of a log with these commands, and one record that is none."""
    cluster = MemoryCluster()
    found = ClusterWatch(cluster, "demo")
    assert found.look().version == 0, "there is no log yet"
    client = KafkaLog(cluster, "demo", "p0")
    client.start()
    client.append(b"junk")
    client.close()
    for _, each in entries:
        append_command(cluster, "demo", each)
    return found


def new_run() -> JobsRun:
    found = watch(LOG)
    replica = found.look()
    found.close()
    assert [entry.command for _, _, entry in found.entries if entry] == [each for _, each in LOG]
    second = replace(replica.jobs[SECOND], phase=JobPhase.COMPLETED)
    weather = replace(second, graph="weather")
    jobs = {**replica.jobs, SECOND: second, JobId("weather-1"): weather}
    return JobsRun(2_500, 12_000, TIMELINE, {P0: 1, P1: 2, P2: 3}, FAULTS, replace(replica, jobs=jobs))


def new_tables() -> dict[str, TablesFound]:
    """The tables of a perfect run."""
    return {
        name: TablesFound(each.rows, each.refused, each.rows.total(), 4, Counter({2: 2, 3: 1}), 5)
        for name, each in EXPECTED.items()
    }


def test_faults_are_spread_over_the_rows_in_an_order_of_their_seed() -> None:
    counts = Counter({FaultKind.KILL: 2, FaultKind.FREEZE: 1, FaultKind.JOIN: 1, FaultKind.RESUBMIT: 1})
    found = plan_faults(counts, 10_000, seed=1)
    assert (Counter(each.kind for each in found), found) == (counts, plan_faults(counts, 10_000, seed=1))
    points = [each.after for each in found]
    assert points == sorted(points)
    assert 0 <= points[0] <= points[-1] < 9_000, "rows are left after the last one"
    orders = {tuple(each.kind for each in plan_faults(counts, 10_000, seed)) for seed in range(20)}
    assert len(orders) > 10
    assert plan_faults(Counter(), 10, 1) == []
    assert plan_faults(Counter({FaultKind.JOIN: 1}), 0, 1) == [PlannedFault(FaultKind.JOIN, 0)]


def test_timeline_has_each_peer_each_of_its_tasks_and_each_phase() -> None:
    reads, looks = ("read-departures", "look_up")
    silent, died = LeaveReason.SILENT, LeaveReason.DIED
    assert TIMELINE.stays == [
        Stay(P0, 1_000, 10_000, silent),
        Stay(P1, 2_000, 6_000, died),
        Stay(P2, 7_000, 12_000, None),
    ]
    assert TIMELINE.works == [
        TaskSpan(P0, FIRST, reads, 3_000, 6_000), TaskSpan(P1, FIRST, looks, 3_000, 6_000),
        TaskSpan(P0, FIRST, reads, 7_000, 8_000), TaskSpan(P2, FIRST, looks, 7_000, 8_000),
        TaskSpan(P0, SECOND, reads, 9_000, 10_000), TaskSpan(P2, SECOND, looks, 9_000, 10_000),
    ]  # fmt: skip
    assert [(each.job, each.phase.value, each.began, each.ended) for each in TIMELINE.phases] == [
        (FIRST, "waiting", 3_000, 3_000), (FIRST, "starting", 3_000, 5_000), (FIRST, "running", 5_000, 6_000),
        (FIRST, "waiting", 6_000, 7_000), (FIRST, "starting", 7_000, 8_000),
        (SECOND, "waiting", 9_000, 9_000), (SECOND, "starting", 9_000, 10_000), (SECOND, "waiting", 10_000, 11_000),
    ]  # fmt: skip
    assert TIMELINE.work_of(P0, 7_500) == TaskSpan(P0, FIRST, "read-departures", 7_000, 8_000)
    assert (TIMELINE.work_of(P0, 8_000), TIMELINE.stay_of(PeerId("p9"))) == (None, None)


def test_expected_rows_of_the_aircraft_are_those_of_the_functions() -> None:
    assert EXPECTED["aircraft"].rows == Counter(
        [(1, "UA 1", "N10156", "EMB-145XR", 2), (2, "UA 2", "N9", "unknown", 0), (4, "UA 4", "N4", "unknown", 0)]
    )
    assert EXPECTED["aircraft"].refused == {3: "name: ValueError: DL 3 has no tail number"}


def spoil_rows(found: dict[str, TablesFound]) -> dict[str, TablesFound]:
    lost = replace(found["aircraft"], rows=found["aircraft"].rows - Counter([min(found["aircraft"].rows)]))
    return {**found, "aircraft": lost}


SPOILED: dict[str, tuple[Callable[[JobsRun], JobsRun], set[str]]] = {
    "nothing": (lambda run: run, set()),
    "no kill": (lambda run: replace(run, faults=FAULTS[1:]), {"peers killed, and seen to be dead"}),
    "a freeze that nobody has seen": (
        lambda run: replace(run, timeline=replace(TIMELINE, stays=TIMELINE.stays[1:])),
        {"peers frozen, and found silent"},
    ),
    "a peer that never joined": (
        lambda run: replace(run, timeline=replace(TIMELINE, stays=TIMELINE.stays[:2])),
        {"peers that joined the others later"},
    ),
    "jobs that did not end": (
        lambda run: replace(run, replica=replace(run.replica, jobs={})),
        {"jobs killed, and submitted again", "jobs completed"},
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_checks_of_a_run_detect_what_did_not_happen(case: str) -> None:
    spoil, wrong = SPOILED[case]
    checks = judge_jobs(EXPECTED, new_tables(), PLANNED, spoil(new_run()))
    assert {check.what for check in checks if not check.ok} == wrong


def test_checks_name_the_graph_whose_rows_differ() -> None:
    checks = judge_jobs(EXPECTED, spoil_rows(new_tables()), PLANNED, new_run())
    assert {check.what for check in checks if not check.ok} == {"aircraft: rows stored", "aircraft: rows lost"}


def test_results_say_what_was_read_again_and_who_took_how_many_tasks() -> None:
    told = """\
aircraft: 4 flights were claimed, and 3 rows stored. 2 flights were under way when a peer died or froze, and were read \
again, one of them 2 times. 5 rows were written: 2 of them were there already, and were recognized by their hash.
weather: 4 flights were claimed, and 3 rows stored. 0 flights were under way when a peer died or froze, and were read \
again. 5 rows were written: 2 of them were there already, and were recognized by their hash.
3 peers, one after another in their places, took 6 tasks."""
    tables = new_tables()
    tables["weather"] = replace(tables["weather"], deaths=Counter())
    assert "\n".join(describe_jobs(tables, new_run())) == told


PEERS_TOLD = "the two jobs have 10 tasks, and each needs a peer: give --peers 10, or better 12: some are killed"
ROWS_TOLD = (
    "4 kills and freezes in 100 rows could hit one row 5 times, and then it is refused: give at least 2,000 rows"
)


@pytest.mark.parametrize(
    ("options", "told"), [(JobsOptions(100, 1, 1, 9, 1), PEERS_TOLD), (JobsOptions(100, 3, 1, 10, 1), ROWS_TOLD)]
)
def test_options_that_cannot_work_are_refused_with_the_remedy(options: JobsOptions, told: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        command.run(options, tmp_path / "output")
    assert str(refused.value) == told
    assert not (tmp_path / "output").exists()


class FakeSupervisor:
    """Stands for SupervisedPeers: `count` peers that run until `stop`."""

    def __init__(self, options: PeerOptions, count: int, settings: Settings, environment: Any) -> None:
        del options, settings, environment
        self.running = {slot: (100 * count + slot, PeerId(f"p{count}.{slot}")) for slot in range(count)}
        self.has_stopped = False
        made.append(self)

    def run(self, on_start: Callable[[], None], output: Callable[..., None]) -> None:
        on_start()
        output(1, "0", [b"hello"])
        if len(self.running) == 3:
            raise WorkersFailed("it gave up")

    def stop(self) -> None:
        self.has_stopped = True


made: list[FakeSupervisor] = []
lines: list[tuple[object, ...]] = []


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> DemoPeers:
    made.clear()
    monkeypatch.setattr(demo_peers, "SupervisedPeers", FakeSupervisor)
    monkeypatch.setattr(demo_peers, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    found = DemoPeers(PeerOptions(cluster="demo", targets=[]), Settings(), {}, lambda *line: lines.append(line), 1)
    lines.clear()
    return found


def test_peers_that_are_hit_are_members_and_hit_once(peers: DemoPeers, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append((pid, signum)))
    peers.start(2)
    peers.start(1)
    members = [PeerId("p2.1"), PeerId("p1.0")]
    assert peers.running()[2] == DemoPeer(3, 100, PeerId("p1.0")), "places are numbered over all supervisors"
    frozen, killed = peers.freeze(members), peers.kill(members)
    assert frozen is not None
    assert killed is not None
    assert {frozen.peer, killed.peer} == {*members}
    assert (peers.kill(members), peers.freeze(members)) == (None, None)
    peers.close()
    assert [each.has_stopped for each in made] == [True, True]
    assert sent == [(frozen.pid, signal.SIGSTOP), (killed.pid, signal.SIGKILL)]
    assert lines == [(1, "1", [b"hello"]), (1, "3", [b"hello"])]


def test_frozen_peer_goes_on_at_the_end(peers: DemoPeers, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[int]()
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append(signum))
    peers.start(1)
    peers.freeze([PeerId("p1.0")])
    peers.close()
    peers.thaw()
    assert sent == [signal.SIGSTOP, signal.SIGCONT]


def test_peer_that_has_ended_by_itself_is_not_hit(peers: DemoPeers, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, signum: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    peers.start(1)
    assert peers.kill([PeerId("p1.0")]) is None


def test_supervisor_that_gives_up_ends_the_run(peers: DemoPeers) -> None:
    peers.start(3)
    with pytest.raises(WorkersFailed, match="it gave up"):
        peers.close()
    with pytest.raises(WorkersFailed, match="it gave up"):
        peers.running()


@pytest.mark.parametrize("is_wrong", [False, True])
def test_report_of_a_run_shows_who_ran_what_and_each_fault(is_wrong: bool) -> None:
    from kstreams_py.demo.jobs.report import JobsReport, draw_page  # noqa: PLC0415 it imports Matplotlib

    run, tables = new_run(), new_tables()
    checks = judge_jobs(EXPECTED, spoil_rows(tables) if is_wrong else tables, PLANNED, run)
    page = draw_page(JobsReport(JobsOptions(4, 1, 1, 10, 7), run, tables, checks, 61.0)).replace("&nbsp;", " ")
    outcome = "2 of 21 checks failed" if is_wrong else "tables are equal"
    assert f"<h1>Two jobs, 1 kills, 1 freezes, {outcome}</h1>" in page
    assert '<td class="n">3.4 s</td><td>SIGKILL</td><td>peer 2 (process 7), look_up of aircraft-1</td>' in page
    assert '<tr><td class="n">3</td><td class="n">4.5 s</td><td class="n">5.5 s</td><td>aircraft-1</td>' in page
    assert "<title>4 to 5 s\npeer 1: read-departures of aircraft-1\npeer 3: look_up of aircraft-1" in page
    assert "<code>kstreams demo jobs --rows 4 --kills 1 --freezes 1 --peers 10 --seed 7</code>" in page
    assert page.count("peer 3</text>") == 2, "a row for each place, on wide and narrow screens"


def test_report_of_a_run_without_faults_is_drawn() -> None:
    from kstreams_py.demo.jobs.report import JobsReport, draw_page  # noqa: PLC0415 it imports Matplotlib

    run = replace(new_run(), faults=[], timeline=Timeline([], [], []), places={})
    page = draw_page(JobsReport(JobsOptions(4, 0, 0, 10, 7), run, new_tables(), [], 61.0))
    assert "<p>Nothing.</p>" in page
