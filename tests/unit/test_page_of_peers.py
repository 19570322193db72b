"""What the page, /status, /metrics and the probes of peers show: a cluster, its jobs, and the peers of one machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kstreams_py import Graph
from kstreams_py.jobs.cluster.commands import Entry, Found, JobId, Leave, LeaveReason, PeerId, Scheduler
from kstreams_py.jobs.cluster.log import LogInMemory
from kstreams_py.jobs.cluster.observations import BeatFigures, ClusterFigures
from kstreams_py.jobs.cluster.records import Beat, decode_beat, digest, encode_beat, encode_entry, encode_replica
from kstreams_py.jobs.cluster.state import JobPhase, Replica
from kstreams_py.jobs.cluster.watcher import ClusterWatcher
from kstreams_py.metrics import Counters, PendingFigures, WorkerState
from kstreams_py.running.http.endpoints import Endpoints
from kstreams_py.running.http.observed import ObservedRun
from kstreams_py.running.http.remedies import REMEDIES
from kstreams_py.running.http.series import exposition
from kstreams_py.running.peer_graphs import PeerGraphs
from kstreams_py.running.peer_reports import PeerReports
from kstreams_py.running.reports import PEER, Report
from kstreams_py.running.status import RunStatus, SlotStatus
from kstreams_py.testing.memory_source import MemorySource
from tests.simulation.clusters import ClusterPlant
from tests.simulation.jobs import Table
from tests.unit.replicas import Replicas, new_replicas, submit
from tests.unit.test_page import Browser

NOW = 500.0

GRAPH = Graph("shop")
PARSED = GRAPH.channel("parsed")
GRAPH.map(GRAPH.source("rows", MemorySource([])), to=PARSED, id="parse")(lambda row: row)
GRAPH.sink(PARSED, id="store")(lambda row: None)

OTHER = Graph("other")
OTHER.sink(OTHER.source("rows", MemorySource([])), id="store")(lambda row: None)

SHOWN = PeerGraphs("flights", (GRAPH, OTHER))

COUNTS = {**Counters().as_dict(), "records_in": 7, "records_out": 6}

FRAMES = {"resent": 1, "returned": 2, "came_back": 3, "garbage": 4, "unexpected": 5}
MEASURES = {"entries": 15} | {f"frames:{kind}": count for kind, count in FRAMES.items()}

READ = Report(
    "shop.read-rows", 0, Counters().as_dict(), 0, is_task=True, sources={"shop.rows": PendingFigures(3, 61.0, "13")},
    measures={"inputs:done:shop.rows": 40, "inputs:died:shop.rows": 5, "inputs:given_back:shop.rows": 2},
)  # fmt: skip


def peer_report(slot: int, **changed: Any) -> Report:
    report = Report(PEER, slot, Counters().as_dict(), 0, measures=MEASURES, heartbeat_seconds=0.4)
    return replace(report, **changed)


def status_of(cluster: ClusterFigures | None, **changed: Any) -> RunStatus:
    """Two peers of this machine: one reads, one runs `store`."""
    store = Report("shop.store", 1, COUNTS, 2, is_task=True)
    return RunStatus(
        (
            SlotStatus(0, 4711, (peer_report(0, **changed), READ)),
            SlotStatus(1, 4712, (peer_report(1, **changed), store)),
        ),
        NOW,
        cluster=cluster,
    )


def seen_of(replicas: Replicas, **changed: Any) -> ClusterFigures:
    """What is seen of a cluster whose peers a and b are those of this machine."""
    own = {PeerId("a"): 0, PeerId("b"): 1}
    beats = {peer: BeatFigures(0.5, 14, "9b1f60c2ad7e0011") for peer in replicas.replica.peers if peer != "d"}
    return ClusterFigures(replicas.replica, dict.fromkeys(LeaveReason, 0), beats=beats, own=own, **changed)


class Site:
    """The endpoints of these peers."""

    def __init__(self, *, shows_errors: bool = True) -> None:
        self.observed = ObservedRun(clock=lambda: NOW, wall=lambda: 1_000_000.0, shows_errors=shows_errors)
        self.endpoints = Endpoints(SHOWN, self.observed, 30.0, lambda: NOW, lambda: 1_000_000.0)

    def show(self, cluster: ClusterFigures | None, **changed: Any) -> dict[str, Any]:
        """Notes a status; returns the answer of /status."""
        self.observed.note(status_of(cluster, **changed))
        found: dict[str, Any] = json.loads(self.endpoints.answer("/status").body)
        return found

    def get(self, path: str) -> tuple[int, str]:
        found = self.endpoints.answer(path)
        return found.status, found.body.decode()


def task(name: str, *peers: str, late: tuple[str, ...] = (), complete: bool = False) -> dict[str, Any]:
    return {"task": name, "complete": complete, "peers": [*peers], "not_ready": [*late]}


def member(name: str, slot: int | None, job: str | None, name_of_task: str | None) -> dict[str, Any]:
    beat = (None, None, None) if name == "d" else (0.5, 14, "9b1f60c2ad7e0011")
    return {
        "peer": name, "host": "", "address": "", "slot": slot, "job": job, "task": name_of_task,
        "since_epoch": None if job is None else 1, "heard_seconds": beat[0], "offset": beat[1], "digest": beat[2],
        "differs": name == "c", "unreachable": [],
    }  # fmt: skip


def test_status_has_each_job_with_its_coverage_and_each_peer_with_its_task() -> None:
    replicas = new_replicas("round-robin", 4, "A2 B3")
    found = Site().show(seen_of(replicas, diverged=(PeerId("c"),)))
    job = {"graph": "shop", "fingerprint": "f1", "percentage": None, "deaths": 0}
    why = "its share of 4 peers is 2, and it has 3 tasks: start 2 more peers"
    assert found["cluster"] == {
        "name": "flights",
        "scheduler": "round-robin",
        "messenger": "",
        "offset": 14,
        "left": {"ended": 0, "died": 0, "silent": 0},
        "why": None,
        "jobs": [
            {**job, "job": "A", "phase": "running", "epoch": 1, "why": None,
             "tasks": [task("t0", "a", "c"), task("t1", "b", "d")]},
            {**job, "job": "B", "phase": "waiting", "epoch": 0, "why": why,
             "tasks": [task("t0"), task("t1"), task("t2")]},
        ],
        "peers": [member("a", 0, "A", "t0"), member("b", 1, "A", "t1"), member("c", None, "A", "t0"),
                  member("d", None, "A", "t1")],
    }  # fmt: skip
    assert [each["processor"] for each in found["graph"]["processors"]] == ["shop.parse", "shop.store", "other.store"]
    assert [(each["source"], (each["totals"] or {}).get("pending")) for each in found["graph"]["sources"]] == [
        ("shop.rows", 3), ("other.rows", None),
    ]  # fmt: skip
    assert (found["graph"]["name"], found["graph"]["target"], found["live"], found["ready"]) == (
        "flights", "GRAPH", True, True,
    )  # fmt: skip


SERIES = """\
kstreams_peers{graph="flights"} 4.0
kstreams_jobs{graph="flights",phase="waiting"} 1.0
kstreams_jobs{graph="flights",phase="starting"} 0.0
kstreams_jobs{graph="flights",phase="running"} 1.0
kstreams_jobs{graph="flights",phase="completed"} 0.0
kstreams_jobs{graph="flights",phase="killed"} 0.0
kstreams_jobs{graph="flights",phase="refused"} 0.0
kstreams_tasks_without_peer{graph="flights",job="A"} 0.0
kstreams_tasks_without_peer{graph="flights",job="B"} 3.0
kstreams_job_epoch{graph="flights",job="A"} 1.0
kstreams_job_epoch{graph="flights",job="B"} 0.0
kstreams_departed_peers_total{graph="flights",reason="ended"} 0.0
kstreams_departed_peers_total{graph="flights",reason="died"} 0.0
kstreams_departed_peers_total{graph="flights",reason="silent"} 0.0
kstreams_differing_replicas{graph="flights"} 1.0
kstreams_unreachable_peers{graph="flights"} 0.0
kstreams_heartbeat_seconds{graph="flights",slot="0"} 0.4
kstreams_heartbeat_seconds{graph="flights",slot="1"} 0.4
kstreams_log_entries_total{graph="flights",slot="0"} 15.0
kstreams_log_entries_total{graph="flights",slot="1"} 15.0
kstreams_frames_total{graph="flights",kind="resent",slot="0"} 1.0
kstreams_frames_total{graph="flights",kind="returned",slot="0"} 2.0
kstreams_frames_total{graph="flights",kind="came_back",slot="0"} 3.0
kstreams_frames_total{graph="flights",kind="garbage",slot="0"} 4.0
kstreams_frames_total{graph="flights",kind="unexpected",slot="0"} 5.0
kstreams_frames_total{graph="flights",kind="strangers",slot="0"} 0.0
kstreams_frames_total{graph="flights",kind="resent",slot="1"} 1.0
kstreams_frames_total{graph="flights",kind="returned",slot="1"} 2.0
kstreams_frames_total{graph="flights",kind="came_back",slot="1"} 3.0
kstreams_frames_total{graph="flights",kind="garbage",slot="1"} 4.0
kstreams_frames_total{graph="flights",kind="unexpected",slot="1"} 5.0
kstreams_frames_total{graph="flights",kind="strangers",slot="1"} 0.0
"""


def test_series_of_peers_are_written_only_for_those() -> None:
    seen = seen_of(new_replicas("round-robin", 4, "A2 B3"), diverged=(PeerId("c"),))

    def lines(status: RunStatus) -> list[str]:
        return [each for each in exposition("flights", status).decode().splitlines(keepends=True) if each[0] != "#"]

    slots = tuple(
        replace(slot, reports=tuple(replace(each, processor="p", heartbeat_seconds=None) for each in slot.reports))
        for slot in status_of(None).slots
    )
    without = {each.split("{")[0] for each in lines(RunStatus(slots, NOW))}
    assert "".join(each for each in lines(status_of(seen)) if each.split("{")[0] not in without) == SERIES


def drawn(browser: Browser, section: str) -> list[list[str]]:
    """The rows of all tables of a section."""
    rows: list[list[str]] = browser.ask(
        f"[...find({section!r}).all()].filter(each => each.tag === 'tr').map(each => each.nodes.map(cell => "
        "cell.textContent))"
    )
    return rows


def test_page_shows_a_job_that_moves_while_a_peer_is_killed() -> None:
    browser, site = Browser(SHOWN), Site()
    replicas = new_replicas("round-robin", 3, "A3")
    browser.show(site.show(seen_of(replicas)))
    head = ["task", "coverage", "peers"]
    assert drawn(browser, "jobs") == [head, ["t0", "1 peer", "a"], ["t1", "1 peer", "b"], ["t2", "1 peer", "c"]]
    assert "A running, graph shop, epoch 1" in browser.text("jobs")
    assert browser.text("summary") == "1 thing to look at", "an input is under way for 61 s"

    replicas.leave("b")
    browser.show(site.show(seen_of(replicas)))
    assert drawn(browser, "jobs") == [head, *([name, "no peer", "none"] for name in ("t0", "t1", "t2"))]
    why = "it has 3 tasks, and the cluster has 2 peers: start 1 more peer"
    assert f"A waiting, graph shop, epoch 2, stopped 1 time by a death{why}" in browser.text("jobs")
    assert f"Look at:job A is waiting: {why}→ {REMEDIES['job_waits']}" in browser.text("findings")

    replicas.is_ready = False
    replicas.join()
    browser.show(site.show(seen_of(replicas)))
    assert drawn(browser, "jobs") == [
        head, *([name, "0 of 1 ready", f"{peer} (not ready)"] for name, peer in (("t0", "a"), ("t1", "c"), ("t2", "d")))
    ]  # fmt: skip
    for each in replicas.unready():
        replicas.append(each)
    browser.show(site.show(seen_of(replicas)))
    assert drawn(browser, "jobs") == [head, ["t0", "1 peer", "a"], ["t1", "1 peer", "c"], ["t2", "1 peer", "d"]]
    assert drawn(browser, "peers") == [
        ["peer", "task", "machine", "address", "slot here", "heard", "digest of its log"],
        ["a", "A: t0", "", "", "0", "1 s ago", "9b1f60c2ad7e0011 at 14"],
        ["c", "A: t1", "", "", "none", "1 s ago", "9b1f60c2ad7e0011 at 14"],
        ["d", "A: t2", "", "", "none", "not yet", "not yet"],
    ]


def test_page_of_peers_shows_the_figures_of_their_tasks_in_a_picture_of_each_graph() -> None:
    browser = Browser(SHOWN)
    browser.show(Site().show(seen_of(new_replicas("greedy", 2))))
    assert browser.ask("location.reloads") == 0
    assert browser.ask('document.querySelectorAll(".processor").map(each => each.dataset.processor)') == [
        *("shop.parse", "shop.store") * 2, *("other.store",) * 2,
    ]  # fmt: skip
    assert browser.picture("processor", "shop.store")[2:] == ["● running", "1 worker", "0/s in", "0/s out", "2 waiting"]
    assert browser.picture("processor", "other.store")[2:] == ["not started"]
    rows = [row for row in drawn(browser, "sources") if row[0] == "shop.rows"]
    assert [row[2:] for row in rows] == [
        ["3", "61 s, key 13, slot 0", "40", "0", "5 died, 2 given back", "nothing"]
    ]  # fmt: skip
    assert browser.text("jobs") == "No job: kstreams job submit gives the cluster one."


def test_page_of_a_run_without_peers_has_no_sections_of_a_cluster() -> None:
    browser = Browser(GRAPH)
    browser.show(json.loads(Endpoints(GRAPH, ObservedRun(), 30.0).answer("/status").body))
    assert browser.ask("[find('s-jobs').hidden, find('s-peers').hidden]") == [True, True]


# Findings, and the probes.


def test_findings_are_a_waiting_job_a_silent_peer_and_digests_that_differ() -> None:
    replicas = new_replicas("round-robin", 4, "A2 B3")
    left = {**dict.fromkeys(LeaveReason, 0), LeaveReason.SILENT: 2}
    seen = replace(seen_of(replicas, diverged=(PeerId("c"),), silent="z", silent_seconds=65.0), left=left)
    beats = {**seen.beats, PeerId("b"): BeatFigures(0.5, 14, "9b", (PeerId("a"), PeerId("z")))}  # z has left
    seen = replace(seen, beats=beats)
    assert Site().show(seen)["cluster"]["peers"][1]["unreachable"] == ["a"]
    found = [(each["level"], each["kind"], each["what"]) for each in Site().show(seen)["findings"]]
    assert found == [
        ("bad", "digests_differ", "the state of the cluster is another one at c: their digests differ"),
        ("warning", "pending", "slot 0: an input of shop.rows (key 13) is under way for 61 s"),
        ("warning", "peer_unreachable", "peers do not reach each other: b cannot reach a"),
        ("warning", "job_waits",
         "job B is waiting: its share of 4 peers is 2, and it has 3 tasks: start 2 more peers"),
        ("warning", "peer_silent", "2 peers found silent since the run started, the last, z, 65 s ago"),
    ]  # fmt: skip
    later = Site().show(replace(seen, silent_seconds=600.0, diverged=(), beats={}))["findings"]
    assert [each["kind"] for each in later] == ["pending", "job_waits"]


def test_job_that_is_starting_is_only_a_note() -> None:
    replicas = new_replicas("round-robin", 2)
    replicas.is_ready = False
    replicas.append(submit("A2"))
    found = [each for each in Site().show(seen_of(replicas))["findings"] if each["kind"] == "job_waits"]
    assert [(each["level"], each["what"]) for each in found] == [
        ("note", "job A is starting: waits until a peer is ready for t0, t1")
    ]


def test_log_that_is_away_is_one_finding_and_its_peers_are_alive_and_not_ready() -> None:
    site = Site()
    away = {"state": WorkerState.BROKER_AWAY, "heartbeat_seconds": 7.2}
    found = site.show(seen_of(new_replicas("round-robin", 2, "A2"), why="no broker answers"), **away)
    what = "the log of the cluster is away: for 7 s no heartbeat of slots 0, 1 came back"
    assert [(each["level"], each["kind"], each["what"]) for each in found["findings"]] == [
        ("bad", "log_away", what),
        ("warning", "pending", "slot 0: an input of shop.rows (key 13) is under way for 61 s"),
    ]
    assert found["cluster"]["why"] == "no broker answers"
    assert site.get("/livez") == (200, "ok\n")
    assert site.get("/readyz") == (503, "slot 0: the peer is broker away\nslot 1: the peer is broker away\n")


def test_peer_that_has_not_joined_is_not_ready() -> None:
    site = Site()
    site.show(None, state=WorkerState.JOINING, heartbeat_seconds=None)
    assert site.get("/readyz") == (503, "slot 0: the peer is joining\nslot 1: the peer is joining\n")
    assert "heartbeat_seconds{" not in site.get("/metrics")[1]


def test_page_of_peers_without_the_texts_of_exceptions_has_their_classes() -> None:
    replicas = new_replicas("round-robin", 2, "A2")
    job = replace(replicas.replica.jobs[JobId("A")], phase=JobPhase.KILLED, why="ValueError: card 4111")
    seen = replace(seen_of(replicas), replica=replace(replicas.replica, jobs={JobId("A"): job}))
    assert Site().show(seen)["cluster"]["jobs"][0]["why"] == "ValueError: card 4111"
    assert Site(shows_errors=False).show(seen)["cluster"]["jobs"][0]["why"] == "ValueError"


# What a supervisor reads.


def read_all(watcher: ClusterWatcher, now: float) -> ClusterFigures:
    watcher.turn(now)
    return watcher.seen.figures(watcher.replica, now)


def test_watcher_has_the_replica_of_the_peers_and_counts_who_left() -> None:
    log, replicas = LogInMemory(), new_replicas(Scheduler.GREEDY, 3, "A2")
    leaves = [Leave(PeerId("c"), LeaveReason.SILENT)] * 2 + [Leave(PeerId("b"), LeaveReason.ENDED)]
    for each in leaves:  # every peer says of a silent one that it leaves
        replicas.append(each)
    watcher = ClusterWatcher(log.open())
    watcher.start()
    for entry in replicas.log:
        log.append(encode_entry(entry))
    log.append(b"junk")
    log.add_beat(b"junk")
    log.add_beat(encode_beat(Beat(PeerId("a"), 1, replicas.replica.offset, digest(replicas.replica))))
    older = b'{"peer":"a","number":1,"offset":2,"digest":"x"}'
    assert decode_beat(older) == Beat(PeerId("a"), 1, 2, "x", turns=0, unreachable=())
    found = read_all(watcher, 10.0)
    assert found == ClusterFigures(
        replicas.replica,
        {LeaveReason.ENDED: 1, LeaveReason.DIED: 0, LeaveReason.SILENT: 1},
        "c",
        beats={PeerId("a"): BeatFigures(0.0, replicas.replica.offset, digest(replicas.replica))},
    )
    assert watcher.seen.foreign == 2
    log.is_away = True
    assert read_all(watcher, 13.0).beats[PeerId("a")].seconds == 3.0
    assert read_all(watcher, 13.0).silent_seconds == 3.0


def test_watcher_finds_the_peer_whose_digest_differs() -> None:
    log, replicas = LogInMemory(), new_replicas(Scheduler.GREEDY, 2, "A2")
    client = log.open()
    client.keep(encode_replica(replicas.replica), replicas.replica.offset)
    watcher = ClusterWatcher(client)
    watcher.start()
    assert watcher.replica == replicas.replica
    offset, right = replicas.replica.offset, digest(replicas.replica)
    for name, number, said in (("a", offset, right), ("b", offset, "0" * 16), ("a", offset + 1, "1" * 16)):
        log.add_beat(encode_beat(Beat(PeerId(name), 1, number, said)))
    assert read_all(watcher, 1.0).diverged == (PeerId("b"),)


def test_entry_of_no_cluster_changes_nothing() -> None:
    log = LogInMemory()
    watcher = ClusterWatcher(log.open())
    watcher.start()
    log.append(encode_entry(Entry("x", 1, Leave(PeerId("a"), LeaveReason.DIED))))
    assert read_all(watcher, 1.0) == ClusterFigures(Replica(offset=0), dict.fromkeys(LeaveReason, 0))
    log.append(encode_entry(Entry("x", 2, Found(1, "flights", Scheduler.GREEDY))))
    assert read_all(watcher, 1.0).replica.cluster == "flights"


# What a peer reports.


class ReportingPlant(ClusterPlant):
    """Peers that run a chain of two tasks over a source without end, and their reports."""

    def __init__(self) -> None:
        super().__init__(range(400))
        parsed = self.graph.channel("parsed")
        self.graph.map(self.rows, to=parsed, id="parse")(lambda value: value)
        self.graph.sink(parsed, to=Table(self), id="store")(lambda value: (value,))
        self.reports: dict[PeerId, PeerReports] = {}
        self.is_looking = True

    def tick(self) -> None:
        super().tick()
        for name in self.peers if self.is_looking else ():
            self.look(name)

    def look(self, name: PeerId) -> Mapping[str, Report]:
        """The reports of a peer, by processor."""
        peer = self.peers[name]
        if name not in self.reports:
            self.reports[name] = PeerReports(3)
            self.reports[name].begin(peer, peer._links, peer._messenger)
        return {each.processor: each for each in self.reports[name].look(self.now)}


def test_peer_reports_on_its_membership_and_each_task_that_it_has_had() -> None:
    plant = ReportingPlant()
    first = plant.add()
    assert [(each.processor, each.state, each.heartbeat_seconds) for each in plant.look(first.me).values()] == [
        (PEER, WorkerState.JOINING, None)
    ]
    for _ in range(2):
        plant.add()
    plant.run_for(1)
    plant.submit()
    plant.run_until(lambda: plant.job is not None and plant.job.phase is JobPhase.RUNNING)
    reader, parser, storer = (plant.find(each) or first.me for each in ("read-rows", "parse", "store"))
    plant.run_until(lambda: plant.look(parser)["plant.parse"].counters["records_in"] > 0)
    of = {name: plant.look(name) for name in (reader, parser, storer)}
    names = ["plant.read-rows", "plant.parse", "plant.store"]
    assert [[*each] for each in of.values()] == [[PEER, name] for name in names]
    assert {each.state for found in of.values() for each in found.values()} == {WorkerState.RUNNING}
    read = of[reader]["plant.read-rows"]
    assert (read.slot, read.is_task, [*read.sources]) == (3, True, ["plant.rows"])

    plant.die_now(storer)  # the job stops, and the others have no task
    plant.run_for(0.5)
    after = {name: plant.look(name) for name in plant.peers}
    assert {name: [*each] for name, each in after.items()} == {reader: [PEER, names[0]], parser: [PEER, names[1]]}
    assert after[parser]["plant.parse"].state is after[reader]["plant.read-rows"].state is WorkerState.SPARE
    assert after[reader]["plant.read-rows"].sources == {"plant.rows": PendingFigures()}
    assert after[reader]["plant.read-rows"].measures["inputs:raised:plant.rows"] > 0

    plant.add()
    plant.run_until(lambda: plant.has_ended)
    ended = [plant.look(name) for name in plant.peers]
    reads = [found["plant.read-rows"] for found in ended if "plant.read-rows" in found]
    assert sum(each.measures["inputs:done:plant.rows"] for each in reads) == 400
    assert all(found[PEER].measures["entries"] > 0 for found in ended)


def test_counts_of_a_task_that_ends_before_the_next_look_are_kept() -> None:
    plant = ReportingPlant()
    peers = [plant.add().me for _ in range(3)]
    plant.run_for(1)
    plant.is_looking = False
    plant.submit()
    plant.run_until(lambda: plant.has_ended and all(plant.peers[name].task is None for name in peers))
    found = {name: report for peer in peers for name, report in plant.look(peer).items()}
    assert found["plant.read-rows"].measures["inputs:done:plant.rows"] == 400
    assert [found[name].counters["records_in"] for name in ("plant.parse", "plant.store")] == [400, 400]


def test_counts_of_a_peer_go_on_in_its_next_incarnation() -> None:
    plant = ReportingPlant()
    first = plant.add()
    plant.run_for(2)
    before = plant.look(first.me)[PEER].measures["entries"]
    reports = plant.reports[first.me]
    reports.end(plant.now)
    second = plant.add()
    reports.begin(second, second._links, second._messenger)
    (found,) = reports.look(plant.now)
    assert (found.measures["entries"], found.state) == (before, WorkerState.JOINING)
    plant.run_for(2)
    assert reports.look(plant.now)[0].measures["entries"] == before + second.membership.seen.entries
