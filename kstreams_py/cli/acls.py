"""`kstreams acls`: prints the rights that a graph needs, by role, as commands for `kafka-acls`."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Annotated

import typer

from kstreams_py.cli.options import AsJson, Bootstrap, Config, Target, load_valid
from kstreams_py.cli.run import parse_slots
from kstreams_py.cli.streams import echo
from kstreams_py.errors import SettingsError
from kstreams_py.operations.acls import NOTES, Role, as_fields, commands, rights_of
from kstreams_py.settings import Settings


def acls(
    target: Target,
    role: Annotated[
        Role | None, typer.Option("--role", help="worker, operator, reader or pipeline; all by default")
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option("--principal", metavar="TYPE:NAME", help="who gets the rights; User:GRAPH-ROLE by default"),
    ] = None,
    slots: Annotated[
        str | None,
        typer.Option(
            "--slots", help="all slots that run, such as 0-7: their transactional ids alone, in place of a prefix"
        ),
    ] = None,
    command_config: Annotated[
        str | None,
        typer.Option("--command-config", metavar="FILE", help="the file with which kafka-acls signs in"),
    ] = None,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print the ACLs that a graph needs as commands for `kafka-acls`, by role and cluster. Connects to no broker.

    - worker: `kstreams run`.
    - operator: `kstreams dead-letters`, `order`, `recover`, `slots`, `state`, `transactions find-hanging`, `doctor`.
    - reader: consumers of outputs and dead letters, `kstreams tail`.
    - pipeline: `kstreams pipeline`, and its Spark.

    The rights on transactional ids are by prefix, and are also those of a graph whose name begins with GRAPH.PROCESSOR.
    With --slots they are not: name the slots of all machines, and those that have run before.
    """
    if principal is not None and not all(principal.partition(":")):
        raise SettingsError(f"--principal {principal!r}: write its type and its name, such as User:alice")
    if as_json and command_config is not None:
        raise SettingsError("--command-config is for commands, and --json prints none: leave one of them out")
    numbers = None if slots is None else parse_slots(slots)
    graph = load_valid(target, needs_processors=False)
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    for each in Role if role is None else [role]:
        rights, whose = rights_of(graph, each, numbers), principal or f"User:{graph.name}-{each}"
        if as_json:
            for right in rights:
                echo(json.dumps(as_fields(right, each, whose)))
            continue
        if not rights and role is not None:
            echo(f"# graph {graph.name} has no work for a {each}: it needs no rights")
        for cluster, granted in groupby(rights, key=lambda right: right.cluster):
            where = settings.of_cluster(cluster) if cluster else settings
            echo(f"# {each} of graph {graph.name}{f', on cluster {cluster}' if cluster else ''}: {NOTES[each]}")
            for line in commands(list(granted), whose, where.bootstrap_servers, command_config):
                echo(line)
