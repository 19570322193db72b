"""Mutations of the rules of a cluster and of its peers: each must be detected."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.cluster import fold, planner, shares
from kstreams_py.jobs.cluster.commands import JobId, Leave, PeerId, Scheduler, SignalReady, Volunteer
from kstreams_py.jobs.cluster.heartbeats import Heartbeats
from kstreams_py.jobs.cluster.shares import Demand
from kstreams_py.jobs.cluster.slots import new_table
from kstreams_py.jobs.cluster.state import JobPhase, Replica
from kstreams_py.jobs.messengers.link import Link
from kstreams_py.jobs.peers import outbox
from kstreams_py.jobs.peers.agreement import Agreement
from kstreams_py.jobs.peers.audits import SegmentAudit
from kstreams_py.jobs.peers.entries import Entries
from kstreams_py.jobs.peers.input_task import InputTask
from kstreams_py.jobs.peers.reachability import Reachability
from tests.simulation import clusters, test_peers
from tests.simulation.test_memberships import run_random_cluster
from tests.simulation.test_peers import run_with_faults
from tests.unit import test_clusters_of_peers, test_heartbeats, test_schedulers

Mutation = Callable[[pytest.MonkeyPatch], None]
Detection = Callable[[], object]

MUTATIONS: dict[str, tuple[Mutation, Detection]] = {}


def mutation(detect: Detection) -> Callable[[Mutation], Mutation]:
    """Adds a mutation, with what must detect it."""

    def add(mutate: Mutation) -> Mutation:
        MUTATIONS[mutate.__name__] = mutate, detect
        return mutate

    return add


@mutation(test_schedulers.test_readiness_for_an_earlier_epoch_changes_nothing)
def readiness_without_its_epoch(patch: pytest.MonkeyPatch) -> None:
    ready = fold._ready

    def take_any(replica: Replica, command: SignalReady) -> Replica:
        assigned = replica.assignments.get(command.peer)
        return ready(replica, command if assigned is None else replace(command, epoch=assigned.since))

    patch.setitem(fold.APPLIES, SignalReady, take_any)


@mutation(test_schedulers.test_plan_is_checked_again_when_a_volunteer_is_applied)
def volunteer_that_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    plan = planner.plan

    def plan_as_seen(replica: Replica) -> Mapping[PeerId, planner.Place]:
        seen = {**replica.peers}
        while len(seen) < 3 and replica.jobs:
            seen[PeerId(f"gone {len(seen)}")] = next(iter(seen.values()))
        return {peer: place for peer, place in plan(replace(replica, peers=seen)).items() if peer in replica.peers}

    patch.setattr(fold, "plan", plan_as_seen)


@mutation(test_schedulers.test_each_event_makes_one_plan)
def each_volunteer_makes_a_plan(patch: pytest.MonkeyPatch) -> None:
    volunteer = fold._volunteer
    patch.setitem(
        fold.APPLIES, Volunteer, lambda replica, command: volunteer(replica, replace(command, seen=replica.offset))
    )


@mutation(lambda: test_schedulers.test_grouped_task_gets_no_peer_after_its_job_has_peers("round-robin"))
def grouped_task_that_grows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "_most", lambda task, *_: float("inf") if task.max_peers is None else task.max_peers)


@mutation(test_schedulers.test_job_runs_once_a_peer_of_each_task_is_ready)
def start_before_all_are_ready(patch: pytest.MonkeyPatch) -> None:
    def start(replica: Replica, name: JobId) -> Replica:
        job = replica.jobs[name]
        if job.phase is JobPhase.STARTING and job.ready:
            return fold._with_job(replica, name, replace(job, phase=JobPhase.RUNNING))
        return replica

    patch.setattr(fold, "_start", start)


@mutation(test_clusters_of_peers.test_share_of_no_job_shrinks_when_a_peer_joins)
def largest_remainder(patch: pytest.MonkeyPatch) -> None:
    def divide(peers: int, demands: Sequence[Demand]) -> list[int]:
        total = sum(each.weight for each in demands)
        quotas = [peers * each.weight / total for each in demands]
        counts = [int(quota) for quota in quotas]
        order = sorted(range(len(demands)), key=lambda index: counts[index] - quotas[index])
        for index in order[: peers - sum(counts)]:
            counts[index] += 1
        return counts

    patch.setattr(shares, "divide", divide)
    patch.setattr(test_clusters_of_peers, "divide", divide)


@mutation(lambda: [test_schedulers.test_scheduler_answers_a_command(*row) for row in test_schedulers.TABLE])
def largest_remainder_in_the_table(patch: pytest.MonkeyPatch) -> None:
    largest_remainder(patch)


@mutation(lambda: test_clusters_of_peers.test_every_small_cluster_covers_what_runs(Scheduler.ROUND_ROBIN))
def job_without_enough_peers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shares, "_short", lambda *_: [])


@mutation(test_clusters_of_peers.test_copy_of_a_command_changes_nothing_even_if_it_would_by_itself)
def copies_that_are_not_dropped(patch: pytest.MonkeyPatch) -> None:
    apply = fold.apply
    patch.setattr(
        test_clusters_of_peers, "apply", lambda replica, entry, at: apply(replace(replica, sequences={}), entry, at)
    )


@mutation(test_schedulers.test_keys_of_a_peer_that_left_alone_move)
def all_keys_move_when_a_peer_leaves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fold, "_slots", lambda _, peers: new_table(peers))


@mutation(test_heartbeats.test_nobody_is_silent_while_the_log_is_away_or_when_it_is_back)
def heartbeats_that_count_although_they_are_old(patch: pytest.MonkeyPatch) -> None:
    def hear(self: Heartbeats, peer: PeerId, number: int, members: Sequence[PeerId]) -> None:
        if peer == self._me:
            self._is_back, self._leased_at = True, self._sent_at
            self._missed = {each: self._missed.get(each, 0) + 1 for each in members if each != self._me}
        else:
            self._missed[peer] = 0

    def next_number(self: Heartbeats, now: float) -> int | None:
        if self._sent_at is not None and now < self._sent_at + self._interval:
            return None
        self._number, self._sent_at = self._number + 1, now
        return self._number

    patch.setattr(Heartbeats, "hear", hear)
    patch.setattr(Heartbeats, "next_number", next_number)
    tick = test_heartbeats.Peers.tick

    def tick_and_queue(self: test_heartbeats.Peers, *, frozen: Sequence[PeerId] = (), is_away: bool = False) -> None:
        """While the log is away, heartbeats are queued."""
        tick(self, frozen=frozen, is_away=is_away)
        if is_away:
            self.log += [(name, 0) for name in self.beats if name != test_heartbeats.C]

    patch.setattr(test_heartbeats.Peers, "tick", tick_and_queue)


@mutation(test_heartbeats.test_peer_has_lost_its_lease_before_another_finds_it_silent)
def lease_without_an_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Heartbeats, "has_lease", lambda self, _: self._leased_at is not None)


@mutation(lambda: test_peers.test_inputs_that_kill_their_peers_are_refused_and_no_others(4, {7, 17}, 0))
def readers_that_do_not_wait_for_suspects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "is_alone", property(lambda _: True))
    patch.setattr(Agreement, "must_wait", property(lambda _: False))


@mutation(lambda: test_peers.test_peers_run_a_job_to_its_end("gather", 6))
def gathers_that_are_never_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clusters, "SECONDS_MAX", 30.0)
    patch.setattr(Entries, "_give_up", lambda *_: [])


@mutation(test_peers.test_inputs_that_a_dead_peer_had_are_read_again_and_no_others)
def audit_that_finds_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clusters, "SECONDS_MAX", 30.0)
    patch.setattr(SegmentAudit, "doubt", lambda *_: None)
    patch.setattr(Entries, "_doubt", lambda *_: [])


@mutation(lambda: test_peers.test_key_that_moves_has_one_peer_within_an_epoch_and_old_frames_go_back(1))
def frames_of_an_older_epoch_that_are_taken(patch: pytest.MonkeyPatch) -> None:
    ready = Link.ready

    def take_all(self: Link, epochs: Mapping[str, int], tasks: Collection[tuple[str, str]] | None = None) -> object:
        for frame in [frame for inbox in self._inboxes.values() for frame in inbox.held]:
            frame.epoch = max(frame.epoch, min(epochs.get(frame.job, 0), 100))
        return ready(self, epochs, tasks)

    patch.setattr(Link, "ready", take_all)


def goes_around(one: str, other: str) -> Detection:
    test = test_peers.test_job_goes_around_two_peers_that_never_reach_each_other
    return lambda: test(one, other, 6, range(1))


@mutation(goes_around("read-rows", "parse"))
def routes_that_keep_an_unreachable_peer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reachability, "choose", lambda _, peers, others: (*peers,))


@mutation(goes_around("read-rows", "store"))
def audit_that_waits_for_an_unreachable_peer(patch: pytest.MonkeyPatch) -> None:
    audit = Entries.audit
    patch.setattr(clusters, "SECONDS_MAX", 60.0)
    patch.setattr(Entries, "audit", lambda self, now, peers, _: audit(self, now, peers))


@mutation(goes_around("read-rows", "read-rows"))
def inputs_of_an_unreachable_acker_that_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InputTask, "keep_ackers", lambda *_: None)
    patch.setattr(clusters, "SECONDS_MAX", 60.0)


@mutation(goes_around("read-rows", "parse"))
def death_charged_to_inputs_lost_between_two_peers(patch: pytest.MonkeyPatch) -> None:
    lose = InputTask.lose
    patch.setattr(InputTask, "lose", lambda self, ids, died_at, _: lose(self, ids, died_at, float("-inf")))


@mutation(test_peers.test_peer_in_a_long_call_is_not_unreachable_and_keeps_its_inputs)
def peer_in_a_call_that_counts_as_unreachable(patch: pytest.MonkeyPatch) -> None:
    turns = iter(range(1, 1_000_000))
    patch.setattr("kstreams_py.jobs.cluster.observations.Observations.turns_of", lambda *_: next(turns))


@mutation(lambda: run_with_faults("several", range(3)))
def one_pattern_for_all_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outbox, "new_patterns", lambda _, count: [1] * count)


@mutation(lambda: run_with_faults("chain", range(6)))
def failure_that_is_acknowledged_as_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acker, "ack", lambda _, ids, __: [*ids])


@mutation(lambda: [run_random_cluster(seed) for seed in range(4)])
def peer_that_left_comes_back(patch: pytest.MonkeyPatch) -> None:
    leave = fold._leave
    patch.setitem(
        fold.APPLIES, Leave, lambda replica, command: replace(leave(replica, command), departed=replica.departed)
    )


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_of_a_cluster_is_detected(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mutate, detect = MUTATIONS[name]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError, RecursionError)):
        detect()
