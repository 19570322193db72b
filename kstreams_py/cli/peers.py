"""`kstreams peer` runs peers of a cluster; `kstreams job` and `kstreams cluster` submit jobs and show what is there."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from kstreams_py.cli.options import AsJson, Bootstrap, Config, Target, load_valid, open_environment
from kstreams_py.cli.streams import echo
from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.graph.names import CLUSTER_MAX, is_plain_name
from kstreams_py.jobs.cluster.commands import FRAME_MAX, JobId, KillJob, Scheduler
from kstreams_py.jobs.cluster.explanations import describe_job, explain
from kstreams_py.jobs.cluster.kafka_log import append_command, read_entries, read_replica
from kstreams_py.jobs.cluster.state import JobPhase
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.operations.clusters import (
    USABLE,
    describe_command,
    describe_tasks,
    find_job,
    submit_job,
)
from kstreams_py.printable import count_of
from kstreams_py.running.wiring import run_in_foreground
from kstreams_py.settings import Settings


def check_cluster(name: str) -> str:
    """Returns the name of a cluster of peers. Raises SettingsError if there can be none of it."""
    if not is_plain_name(name, CLUSTER_MAX):
        raise SettingsError(f"--cluster {name!r}: {USABLE.format(CLUSTER_MAX)}")
    return name


OfCluster = Annotated[str, typer.Option("--cluster", help="the name of the cluster of peers", callback=check_cluster)]
DropsLast = Annotated[
    bool,
    typer.Option("--drops-last", help="of waiting jobs whose shares are too small, leave out the last one first"),
]
JoinsRunning = Annotated[
    bool, typer.Option("--joins-running", help="with --scheduler greedy: peers that join help the job that runs")
]
FrameMax = Annotated[
    int,
    typer.Option(
        help="the most bytes of a frame, which bounds the values on channels; the same for all peers of a cluster",
        min=1 << 20,  # a frame of failures may have almost as many
        max=1 << 30,
    ),
]
Job = Annotated[str, typer.Argument(help="the id of the job, as kstreams job list prints it")]

jobs = typer.Typer(help="Jobs of a cluster of peers: submit, list, show, kill, wait for.", no_args_is_help=True)
clusters = typer.Typer(help="A cluster of peers: its state, and its log in words.", no_args_is_help=True)


def peer(
    cluster: OfCluster,
    allow: Annotated[list[str], typer.Option("--allow", help="a module or file with a graph; can be repeated")],
    workers: Annotated[int, typer.Option(help="peers on this machine, each in a process", min=1)] = 1,
    scheduler: Annotated[
        Scheduler, typer.Option(help="how peers are divided among jobs; the same for all peers of a cluster")
    ] = Scheduler.ROUND_ROBIN,
    drops_last: DropsLast = False,
    joins_running: JoinsRunning = False,
    messenger: Annotated[str, typer.Option(help="how peers reach each other: zmq or http")] = "zmq",
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the port to listen on, that of the first peer; 0 for free ones")] = 0,
    advertised: Annotated[str, typer.Option(help="the address for other machines, if it is not that of --host")] = "",
    certificate: Annotated[str, typer.Option(help="with --messenger http: this peer's certificate for TLS (PEM)")] = "",
    key: Annotated[str, typer.Option(help="the key of --certificate, if that file has none (PEM)")] = "",
    authority: Annotated[str, typer.Option(help="what signs the certificates of all peers (PEM)")] = "",
    frame_max: FrameMax = FRAME_MAX,
    identity: Annotated[str, typer.Option("--id", hidden=True)] = "",
    slot: Annotated[int, typer.Option("--slot", hidden=True)] = 0,
    http: Annotated[
        str | None,
        typer.Option(help="serve a page (/), /metrics, /livez, /readyz, /status at host:port, such as 127.0.0.1:8080"),
    ] = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Run peers of a cluster, which share its jobs, until Ctrl-C or SIGTERM.

    A peer runs only graphs of the modules that --allow names: a job names its graph, and never brings code.
    """
    try:
        from kstreams_py.running.peers import PeerOptions, PeerRun, SupervisedPeers  # noqa: PLC0415 of an extra
    except ModuleNotFoundError as error:
        raise MissingSoftware.of_extra(error, "peers") from None
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers, http=http)
    options = PeerOptions(
        cluster=cluster,
        targets=allow,
        scheduler=scheduler,
        drops_last=drops_last,
        joins_running=joins_running,
        messenger=messenger,
        host=host,
        port=port,
        advertised=advertised,
        certificate=certificate,
        key=key,
        authority=authority,
        frame_max=frame_max,
        peer=identity,
        slot=slot,
    )
    is_one = identity or workers == 1
    run_in_foreground(PeerRun(options, settings) if is_one else SupervisedPeers(options, workers, settings))


@contextmanager
def _open(bootstrap_servers: str | None, config: Config) -> Iterator[Cluster]:
    with open_environment(Settings.load(config, bootstrap_servers=bootstrap_servers)) as environment:
        yield environment.cluster


@jobs.command()
def submit(
    target: Target,
    cluster: OfCluster,
    percentage: Annotated[float | None, typer.Option(help="its share of the peers, for scheduler percentage")] = None,
    name: Annotated[str, typer.Option(help="the id of the job; the name of its graph and a number by default")] = "",
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Submit a graph as a job, and print its id. Peers that allow its module run it."""
    with _open(bootstrap_servers, config) as kafka:
        job = submit_job(kafka, cluster, load_valid(target), percentage, name)
        echo(job)
        replica = read_replica(kafka, cluster)
    state, why = find_job(replica, job), explain(replica, job)
    if state.phase is JobPhase.KILLED:
        echo(f"it is killed already: {why or 'by another command'}", file=sys.stderr)
        raise typer.Exit(1)
    if why:
        echo(f"it waits: {why}", file=sys.stderr)


@jobs.command("list")
def list_jobs(
    cluster: OfCluster, as_json: AsJson = False, bootstrap_servers: Bootstrap = None, config: Config = None
) -> None:
    """Print the jobs of a cluster with their phases and peers, and why a job waits."""
    with _open(bootstrap_servers, config) as kafka:
        replica = read_replica(kafka, cluster)
    for name, job in replica.jobs.items():
        if as_json:
            why, peers = explain(replica, name), len(replica.peers_of(name))
            echo(json.dumps({"job": name, "graph": job.graph, "phase": job.phase, "peers": peers, "why": why}))
        else:
            echo(describe_job(replica, name))
    if not replica.jobs and not as_json:
        echo("no jobs")


@jobs.command()
def show(job: Job, cluster: OfCluster, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print the tasks of a job with their peers."""
    with _open(bootstrap_servers, config) as kafka:
        replica = read_replica(kafka, cluster)
    state, why = find_job(replica, job), explain(replica, JobId(job))
    phase = f"{state.phase}, epoch {state.epoch}{f': {why}' if why else ''}"
    echo(f"{job}  graph {state.graph} ({state.fingerprint}): {phase}")
    for line in describe_tasks(replica, JobId(job)):
        echo(line)


@jobs.command()
def kill(job: Job, cluster: OfCluster, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """End a job. Inputs that are under way go back to their source."""
    with _open(bootstrap_servers, config) as kafka:
        state = find_job(read_replica(kafka, cluster), job)
        if state.has_ended:
            raise SettingsError(f"job {job} is {state.phase} already")
        append_command(kafka, cluster, KillJob(JobId(job)))
    echo(f"{job} is killed")


@jobs.command()
def wait(
    job: Job,
    cluster: OfCluster,
    seconds: Annotated[float | None, typer.Option("--timeout", help="give up after this many seconds")] = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Wait until a job has ended. Exit status 0 if it is completed, 1 if it was killed or after --timeout."""
    deadline = None if seconds is None else time.monotonic() + seconds
    with _open(bootstrap_servers, config) as kafka:
        while not (state := find_job(read_replica(kafka, cluster), job)).has_ended:
            if deadline is not None and time.monotonic() > deadline:
                echo(f"{job} is still {state.phase}")
                raise typer.Exit(1)
            time.sleep(0.5)
    echo(f"{job} is {state.phase}{f': {state.why}' if state.why else ''}")
    if state.phase is not JobPhase.COMPLETED:
        raise typer.Exit(1)


@clusters.command()
def status(cluster: OfCluster, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print the peers of a cluster with their tasks, and its jobs."""
    with _open(bootstrap_servers, config) as kafka:
        replica = read_replica(kafka, cluster)
    echo(f"cluster {cluster}: {count_of(len(replica.peers), 'peer')}, scheduler {replica.scheduler}")
    for name, member in replica.peers.items():
        assigned = replica.assignments.get(name)
        task = "idle" if assigned is None else f"{assigned.job}: {assigned.task}"
        echo(f"  {name}  {member.host}, {member.address}: {task}")
    for job, state in replica.jobs.items():
        why = explain(replica, job)
        echo(f"  job {job}: {state.phase}{f': {why}' if why else ''}")


@clusters.command("log")
def show_log(
    cluster: OfCluster,
    count: Annotated[int, typer.Option("-n", help="how many of the last entries", min=1)] = 100,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print the last commands of a cluster in words."""
    with _open(bootstrap_servers, config) as kafka:
        _, entries = read_entries(kafka, cluster)
    for each in entries[-count:]:
        at = datetime.fromtimestamp(each.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
        what = (
            "no command: somebody else writes to the topic"
            if each.entry is None
            else describe_command(each.entry.command)
        )
        echo(f"{each.offset}  {at}  {what}")
