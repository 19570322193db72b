"""`kstreams k8s` and `kstreams systemd`: print the files that run a graph elsewhere, with its settings."""

from __future__ import annotations

import getpass
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from kstreams_py.cli.options import Bootstrap, Config, CreateTopics, Target, load_valid
from kstreams_py.cli.run import parse_slots
from kstreams_py.deployment.kubernetes import DATA, Deployment, kubernetes_name, manifest
from kstreams_py.deployment.systemd import UnitParameters, unit
from kstreams_py.errors import SettingsError
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import Scheduler
from kstreams_py.jobs.peers.routes import specify_tasks
from kstreams_py.running.peer_graphs import load_graphs
from kstreams_py.secrets import is_secret, redact
from kstreams_py.settings import Settings
from kstreams_py.sinks import Parquet, SQLite

GRACE_SECONDS: Final = 10
"""Seconds beyond drain_timeout_ms until the process is killed. The supervisor itself gives its workers five."""

PEER_PORT: Final = 7400
"""The port on which peers in pods reach one another."""

_LOCAL: Final = ("127.", "localhost:", "[::1]:", "::1:")

Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="an environment variable of the workers; can be repeated"),
]


def k8s(
    target: Target,
    image: Annotated[
        str, typer.Option(help="an image with the graph; its entry point is kstreams; docker/Dockerfile builds one")
    ],
    replicas: Annotated[
        int | None, typer.Option(help="pods; by default 1, or a pod for each task of peers", min=1, max=1000)
    ] = None,
    name: Annotated[str | None, typer.Option(help="name of the objects; the graph's by default, with -")] = None,
    namespace: Annotated[str | None, typer.Option(help="the namespace; that of kubectl by default")] = None,
    cpu: Annotated[str | None, typer.Option(help="CPU request of a pod, such as 500m")] = None,
    memory: Annotated[str | None, typer.Option(help="memory request and limit of a pod, such as 512Mi")] = None,
    env: Env = None,
    secret: Annotated[
        str | None, typer.Option(help="a Secret whose keys are environment variables, such as KSTREAMS_KAFKA__...")
    ] = None,
    http_port: Annotated[int, typer.Option(help="port of /livez, /readyz and /metrics", min=1, max=65535)] = 8080,
    create_topics: CreateTopics = False,
    peers: Annotated[bool, typer.Option("--peers", help="each pod is a peer (see kstreams peer)")] = False,
    cluster: Annotated[str | None, typer.Option(help="with --peers: its name; by default the graph's")] = None,
    scheduler: Annotated[Scheduler | None, typer.Option(help="with --peers: see kstreams peer")] = None,
    messenger: Annotated[str | None, typer.Option(help="with --peers: see kstreams peer")] = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print a StatefulSet with a pod for each slot or peer, a headless Service and a PodDisruptionBudget, as YAML.

    The pods comply with Pod Security "restricted": they run as user 10001, and write only to /tmp and /data.

    The graph is loaded here, and must have the same path in the image. Settings that differ from their defaults become
    environment variables. Kubernetes restarts a pod whatever its exit status: after 2 and 5, correct what its log
    names; 4 means that a worker elsewhere has its slot.
    """
    of_peers = {"--cluster": cluster, "--scheduler": scheduler, "--messenger": messenger}
    given = {name: value for name, value in of_peers.items() if value is not None}
    graph, arguments = (_of_peers if peers else _of_slots)(target, given, create_topics=create_topics)
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    variables = _variables(settings, env or [], "put it into a Secret, and name that with --secret", hidden=secret)
    servers = variables.get("KSTREAMS_BOOTSTRAP_SERVERS", settings.bootstrap_servers)
    if servers.startswith(_LOCAL) and secret is None:
        raise SettingsError(f"no pod reaches the brokers at {servers}: pass --bootstrap-servers")
    wanted = Deployment(
        name=name or kubernetes_name(graph.name),
        namespace=namespace,
        image=image,
        arguments=arguments,
        replicas=replicas or (len(specify_tasks(graph.tasks)) if peers else 1),
        # states go where the pod may write; schemas do not: each pod's volume would have different ones
        environment={"KSTREAMS_STATE_DIRECTORY": f"{DATA}/state", **variables, "KSTREAMS_HTTP": f"0.0.0.0:{http_port}"},
        port=http_port,
        grace_seconds=_grace_seconds(settings),
        peer_port=PEER_PORT if peers else None,
        secret=secret,
        cpu=cpu,
        memory=memory,
    )
    print(manifest(wanted), end="")


def _of_slots(target: str, given: Mapping[str, str], *, create_topics: bool) -> tuple[Graph, list[str]]:
    """Returns the graph, and the arguments of a pod that is a slot. `given`: options of peers: refused."""
    if given:
        raise SettingsError(f"only with --peers: {', '.join(given)}: add that, or leave it out")
    return load_valid(target), ["run", target, "--slot", "auto", *(["--create-topics"] if create_topics else [])]


def _of_peers(target: str, given: Mapping[str, str], *, create_topics: bool) -> tuple[Graph, list[str]]:
    """Returns the graph, and the arguments of a pod that is a peer. `given`: the options that are passed on."""
    if create_topics:
        raise SettingsError(
            "`kstreams peer` creates no topics: leave --create-topics out, and use `kstreams topics create`"
        )
    (graph,) = load_graphs([target]).values()
    named = [word for option, value in ({"--cluster": graph.name} | dict(given)).items() for word in (option, value)]
    return graph, ["peer", "--allow", target, *named, "--host", "0.0.0.0", "--port", str(PEER_PORT)]


def systemd(
    target: Target,
    workers: Annotated[int | None, typer.Option(help="worker processes, slots 0 to N-1", min=1)] = None,
    slots: Annotated[str | None, typer.Option(help="slots of this machine, such as 4-7, instead of --workers")] = None,
    directory: Annotated[Path | None, typer.Option(help="working directory; the current one by default")] = None,
    user: Annotated[str | None, typer.Option(help="user that runs the graph; you by default")] = None,
    env: Env = None,
    write: Annotated[
        list[Path] | None,
        typer.Option(help="a directory that functions write to, beside those of settings and sinks; can be repeated"),
    ] = None,
    environment_file: Annotated[
        Path | None, typer.Option(help="a file with more variables, NAME=VALUE each, such as passwords")
    ] = None,
    create_topics: CreateTopics = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print a systemd unit that runs the graph's slots on this machine, with this Python.

    Settings that differ from their defaults become environment variables. The processes have only the rights of their
    user. They write only to the working directory, the directories of states, schemas and sinks, and to --write.
    """
    graph = load_valid(target)
    if workers is not None and slots is not None:
        raise SettingsError("--workers and --slots both name the slots: pass one of them")
    which = ["--workers", str(workers or 1)] if slots is None else ["--slots", slots]
    if slots is not None:
        parse_slots(slots)
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    remedy = "put it into a file that only its user reads, and name that with --environment-file"
    command = [sys.executable, "-P", "-m", "kstreams_py", "run", target, *which]
    place, user = (directory or Path()).absolute(), user or getpass.getuser()
    written = [place, *_data_directories(settings, user), *_target_directories(graph), *(write or [])]
    wanted = UnitParameters(
        graph=graph.name,
        command=[*command, "--create-topics"] if create_topics else command,
        directory=str(place),
        user=user,
        environment=_variables(settings, env or [], remedy, hidden=environment_file),
        environment_file=None if environment_file is None else str(environment_file.absolute()),
        grace_seconds=_grace_seconds(settings),
        written=list(dict.fromkeys(str(place / path) for path in written)),
    )
    print(unit(wanted), end="")


def _data_directories(settings: Settings, user: str) -> Iterator[Path]:
    """Yields the directories of states and schemas, or their existing parents; by default below the user's home."""
    try:
        home = Path(f"~{user}").expanduser()
    except RuntimeError:  # a user of another machine
        home = Path("/home", user)
    fields = type(settings).model_fields
    for name in ("state_directory", "schema_directory"):
        path: Path = getattr(settings, name)
        if path == fields[name].default:
            path = home / ".local" / "share" / "kstreams_py" / path.name
        yield next((each for each in (path, *path.parents) if each == home or each.exists()), path)


def _target_directories(graph: Graph) -> Iterator[Path]:
    """Yields the directories that the workers' sinks write to."""
    for processor in graph.processors:
        if isinstance(processor.target, SQLite):
            yield processor.target.path.parent
        elif isinstance(processor.target, Parquet):
            yield Path(processor.target.directory)


def _grace_seconds(settings: Settings) -> int:
    return math.ceil(settings.drain_timeout_ms / 1000) + GRACE_SECONDS


def _variables(settings: Settings, given: Sequence[str], remedy: str, *, hidden: object) -> Mapping[str, str]:
    """Returns the variables to print: settings that differ from their defaults, and `--env`.

    - `hidden`: where secrets are kept instead; None for nowhere.

    Raises SettingsError for a secret setting if that is nowhere, and for an `--env` that is secret or has no name.
    """
    usual = {
        f"KSTREAMS_{name.upper()}"
        for name, field in type(settings).model_fields.items()
        if getattr(settings, name) == field.default
    }
    found = {name: value for name, value in settings.as_environment().items() if name not in usual}
    for name in sorted(settings.secret_variables()):
        if hidden is None:
            raise SettingsError(f"{name} is a secret, and is not printed: {remedy}")
        del found[name]
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise SettingsError(f"--env {redact(each)!r} is not a variable: write NAME=VALUE")
        if is_secret(name, value):
            raise SettingsError(f"--env {name} is a secret, and is not printed: {remedy}")
        found[name] = value
    return found
