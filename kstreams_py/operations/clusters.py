"""Clusters of peers: their state and their log in words, and commands for them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Final

from kstreams_py.errors import SettingsError, UserMistake
from kstreams_py.graph.names import is_plain_name
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    CompleteTask,
    Found,
    JobId,
    KillJob,
    Leave,
    Scheduler,
    SealTask,
    SignalReady,
    SubmitJob,
    Volunteer,
)
from kstreams_py.jobs.cluster.kafka_log import append_command, read_replica
from kstreams_py.jobs.cluster.state import JobState, Replica
from kstreams_py.jobs.peers.fingerprints import fingerprint_of
from kstreams_py.jobs.peers.routes import specify_tasks
from kstreams_py.kafka.contracts import Cluster

USABLE: Final = "use 1 to {} of a-z A-Z 0-9 . _ -"
"""The remedy for a name that is not allowed."""

JOB_NAME_MAX: Final = 100
"""The maximum length of a job's id that a person chooses."""

PERCENTAGE_MIN: Final = 0.01
"""The minimum percentage of a job."""

APPLIED_SECONDS: Final = 10.0
"""Seconds that a command may take to appear in the log."""


def submit_job(cluster: Cluster, name: str, graph: Graph, percentage: float | None, job: str = "") -> JobId:
    """Submits a graph as a job; returns the id of the job. Raises SettingsError if the cluster refuses it."""
    if job and not is_plain_name(job, JOB_NAME_MAX):
        raise SettingsError(f"--name {job!r}: {USABLE.format(JOB_NAME_MAX)}")
    job_id, replica = JobId(job or f"{graph.name}-{secrets.token_hex(3)}"), read_replica(cluster, name)
    check_percentage(replica, percentage)
    if job_id in replica.jobs:
        raise SettingsError(f"cluster {name} has had a job {job_id}: leave --name out, or choose another one")
    command = SubmitJob(job_id, graph.name, fingerprint_of(graph), specify_tasks(graph.tasks), percentage)
    append_command(cluster, name, command)
    deadline = time.monotonic() + APPLIED_SECONDS
    while (state := read_replica(cluster, name).jobs.get(job_id)) is None:
        if time.monotonic() > deadline:
            raise UserMistake(f"job {job_id} is not in the log of cluster {name} yet: see `kstreams job list`")
        time.sleep(0.1)
    if state.why:
        raise SettingsError(f"cluster {name} refuses job {job_id}: {state.why}")
    return job_id


def check_percentage(replica: Replica, percentage: float | None) -> None:
    """Raises SettingsError if the percentage of a job is missing, out of range, or not allowed by the scheduler."""
    needs = f"cluster {replica.cluster} has the scheduler {replica.scheduler}"
    if replica.scheduler is not Scheduler.PERCENTAGE:
        if percentage is not None:
            raise SettingsError(f"{needs}, which uses no percentages: leave --percentage out")
    elif percentage is None:
        raise SettingsError(f"{needs}: give the job's share with --percentage, a number from {PERCENTAGE_MIN} to 100")
    elif not PERCENTAGE_MIN <= percentage <= 100:
        raise SettingsError(f"--percentage {percentage}: give a number from {PERCENTAGE_MIN} to 100")


def find_job(replica: Replica, job: str) -> JobState:
    """Returns a job. Raises SettingsError if no job has this id."""
    if (state := replica.jobs.get(JobId(job))) is None:
        known = ", ".join(replica.jobs) or "none"
        raise SettingsError(f"cluster {replica.cluster} has no job {job}: it has {known}")
    return state


def describe_tasks(replica: Replica, job: JobId) -> Iterator[str]:
    """Yields a line for each task of a job: its peers, and whether they are ready."""
    state = replica.jobs[job]
    width = max((len(task.id) for task in state.tasks), default=0)
    for task in state.tasks:
        peers = replica.peers_of(job, task.id)
        shown = ", ".join(peer if peer in state.ready else f"{peer} (not ready)" for peer in peers)
        yield f"  {task.id:{width}}  {'complete' if task.id in state.complete else shown or 'no peer'}"


def describe_command(command: Command) -> str:
    """Returns a command in words."""
    match command:
        case Found():
            return f"a peer starts, with scheduler {command.scheduler}"
        case AcceptJoin():
            return f"peer {command.peer} joins: {command.host}, at {command.address}"
        case SubmitJob():
            share = "" if command.percentage is None else f" at {command.percentage:g} %"
            return f"job {command.job} is submitted{share}: graph {command.graph}, {len(command.tasks)} tasks"
        case KillJob():
            return f"job {command.job} is killed{f': {command.why}' if command.why else ''}"
        case CompleteTask():
            return f"job {command.job}: task {command.task} is complete"
        case SealTask():
            return f"job {command.job}: peer {command.peer} has nothing left to read for {command.task}"
        case Leave():
            return f"peer {command.peer} leaves: {command.reason}"
        case Volunteer():
            return f"peer {command.peer} volunteers, having seen offset {command.seen}"
        case SignalReady():
            return f"peer {command.peer} is ready for job {command.job}, epoch {command.epoch}"
