"""Describes a cluster of peers for /status: the peers of each task of each job, and why a job waits."""

from __future__ import annotations

from typing import Any

from kstreams_py.jobs.cluster.commands import JobId, PeerId, TaskSpec
from kstreams_py.jobs.cluster.explanations import explain
from kstreams_py.jobs.cluster.observations import ClusterFigures
from kstreams_py.jobs.cluster.state import JobState, Replica


def cover(cluster: ClusterFigures) -> dict[str, Any]:
    """Returns the `cluster` part of /status."""
    replica = cluster.replica
    return {
        "name": replica.cluster,
        "scheduler": replica.scheduler,
        "messenger": replica.messenger,
        "offset": replica.offset,
        "left": dict(cluster.left),
        "why": cluster.why or None,
        "jobs": [_job(replica, name, job) for name, job in replica.jobs.items()],
        "peers": [_peer(cluster, name) for name in replica.peers],
    }


def _job(replica: Replica, name: JobId, job: JobState) -> dict[str, Any]:
    return {
        "job": name,
        "graph": job.graph,
        "fingerprint": job.fingerprint,
        "phase": job.phase,
        "epoch": job.epoch,
        "percentage": job.percentage,
        "deaths": job.deaths,
        "why": explain(replica, name) or None,
        "tasks": [] if job.has_ended else [_task(replica, name, job, task) for task in job.tasks],
    }


def _task(replica: Replica, name: JobId, job: JobState, task: TaskSpec) -> dict[str, Any]:
    peers = replica.peers_of(name, task.id)
    return {
        "task": task.id,
        "complete": task.id in job.complete,
        "peers": peers,
        "not_ready": [peer for peer in peers if peer not in job.ready],
    }


def _peer(cluster: ClusterFigures, name: PeerId) -> dict[str, Any]:
    member, assigned = cluster.replica.peers[name], cluster.replica.assignments.get(name)
    beat = cluster.beats.get(name)
    return {
        "peer": name,
        "host": member.host,
        "address": member.address,
        "slot": cluster.own.get(name),
        "job": None if assigned is None else assigned.job,
        "task": None if assigned is None else assigned.task,
        "since_epoch": None if assigned is None else assigned.since,
        "heard_seconds": None if beat is None else beat.seconds,
        "offset": None if beat is None else beat.offset,
        "digest": None if beat is None else beat.digest,
        "differs": name in cluster.diverged,
        "unreachable": [*cluster.unreachable.get(name, ())],
    }
