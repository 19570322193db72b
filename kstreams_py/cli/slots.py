"""`kstreams slots`: lists the workers that hold the slots of a graph, and releases slots of ended workers."""

from __future__ import annotations

from typing import Annotated

import typer

from kstreams_py.cli.options import Bootstrap, Config, Target, load_valid
from kstreams_py.cli.streams import echo, echo_lines
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.groups import GroupInfo, describe_slots, members_of, slot_of
from kstreams_py.settings import Settings

app = typer.Typer(
    help="The slots of a graph: list the workers that hold them, release those of workers that have ended.",
    no_args_is_help=True,
)


@app.command("list")
def list_slots(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print the group of each processor: its state, and the host, partitions and member of each slot."""
    admin = GroupAdmin(Settings.load(config, bootstrap_servers=bootstrap_servers))
    echo_lines(describe_slots(_groups(load_valid(target), admin)))


@app.command()
def release(
    target: Target,
    slots: Annotated[list[int], typer.Argument(help="slots whose workers have ended for good", min=0)],
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Remove the static members of these slots from every group of the graph. Their partitions move immediately.

    Use this for slots that no worker will take again. It does not end a worker that still runs: such a worker joins its
    groups again, or ends if it was in the middle of a commit. A slot without a member is free already.
    """
    graph = load_valid(target)
    admin = GroupAdmin(Settings.load(config, bootstrap_servers=bootstrap_servers))
    found = members_of(_groups(graph, admin), slots)
    present = {slot_of(group, member.instance) for group, members in found.items() for member in members}
    for slot in sorted({*slots} - present):
        echo(f"slot {slot} has no member in any group of graph {graph.name!r}: nothing to release")
    for group, members in found.items():
        removed = admin.remove(group, {member.instance: "" for member in members})
        for member in members:
            done = "released" if removed[member.instance] else "had left already:"
            held = ", ".join(map(str, member.partitions)) or "no partition"
            echo(f"{group}: {done} slot {slot_of(group, member.instance)} on {member.host} ({held})")


def _groups(graph: Graph, admin: GroupAdmin) -> dict[str, GroupInfo]:
    """Returns the consumer groups of a graph."""
    return admin.describe([*graph.groups])
