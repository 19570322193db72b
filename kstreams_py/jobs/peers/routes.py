"""Where the segments of a job go: the peers of each task, by the replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any, Final, NamedTuple

from kstreams_py.errors import SettingsError
from kstreams_py.graph.channels import JobTask, TaskKind, filled_channels
from kstreams_py.graph.declarations import Routing
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import JobId, PeerId, TaskSpec
from kstreams_py.jobs.cluster.slots import slot_of, slot_of_id
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.jobs.segments import Segments

READ: Final = "read-"
"""The beginning of an input task's id; the name of its channel follows."""


class Route(NamedTuple):
    """How the segments of a channel get to the peers of one task that reads it.

    - `peers`: the peers that are ready, in the order in which they joined.
    - `slots`: the peer of each slot, for a grouped task; None for others.
    - `group_by`: as in Channel; None if a segment is grouped by its input, as at a gather.
    - `routing`: as in Channel.
    - `left_out`: the peers that are ready but not used, because they do not reach all others.
    - `is_cut`: whether no peer of the task can be reached.
    """

    channel: str
    task: str
    peers: tuple[PeerId, ...]
    slots: tuple[PeerId, ...] | None = None
    group_by: Callable[[Any], Any] | None = None
    routing: Routing = Routing.LEAST_QUEUED
    left_out: tuple[PeerId, ...] = ()
    is_cut: bool = False


class Routes(NamedTuple):
    """The routes of a job in one epoch, by the names of channels."""

    job: JobId
    epoch: int
    by_channel: Mapping[str, tuple[Route, ...]]


def check_graph(graph: Graph) -> None:
    """Raises SettingsError for a graph that peers cannot run: one without channels, or with processors of topics."""
    if not graph.tasks:
        raise SettingsError(f"graph {graph.name!r} has no channels: run it with `kstreams run`")
    if names := ", ".join(each.id for each in graph.processors):
        raise SettingsError(
            f"graph {graph.name!r} has processors of topics, which peers do not run ({names}): declare them in a graph "
            "of their own, and run that with `kstreams run`"
        )


def specify_tasks(tasks: Sequence[JobTask]) -> tuple[TaskSpec, ...]:
    """Returns what a scheduler has to know about a graph's tasks. Each source is read by a task of its own.

    Raises SettingsError if a task has the same id as one that reads a source.
    """
    inputs = [
        # a source that only one peer at a time can read declares `readers_max`
        TaskSpec(READ + channel.name, is_input=True, max_peers=getattr(channel.source, "readers_max", None))
        for channel in filled_channels(tasks)
    ]
    for name in {each.id for each in inputs} & {task.id for task in tasks}:
        source = name.removeprefix(READ)
        raise SettingsError(f"task {name!r} has the id of the task that reads source {source!r}: rename one of them")
    return *inputs, *(TaskSpec(task.id, is_grouped=is_grouped(task)) for task in tasks)


def is_grouped(task: JobTask) -> bool:
    """Returns whether only one peer may take a given segment: the peer of its group or of its input."""
    return task.kind is TaskKind.GATHER or any(channel.group_by is not None for channel in task.inputs)


def find_routes(replica: Replica, job: JobId, tasks: Iterable[JobTask]) -> Routes:
    """Returns the routes to the tasks of a job."""
    by_number = {member.number: peer for peer, member in replica.peers.items()}
    state, found = replica.jobs[job], dict[str, tuple[Route, ...]]()
    for task in tasks:
        ready = tuple(replica.ready_peers_of(job, task.id))
        slots = tuple(by_number[number] for number in state.slots.get(task.id, ())) or None
        for channel in task.inputs:
            group_by = None if task.kind is TaskKind.GATHER else channel.group_by
            route = Route(channel.name, task.id, ready, slots, group_by, channel.routing)
            found[channel.name] = (*found.get(channel.name, ()), route)
    return Routes(job, state.epoch, found)


def go_around(routes: Routes, choose: Callable[[Sequence[PeerId]], tuple[PeerId, ...]]) -> Routes:
    """Returns routes that leave out peers that do not reach all others.

    Grouped tasks keep all their peers, because each has its own keys.
    - `choose`: returns the peers to use among several; none if none of them can be reached: then all are kept.
    """
    found = {channel: tuple(_around(each, choose) for each in of) for channel, of in routes.by_channel.items()}
    return routes._replace(by_channel=found)


def _around(route: Route, choose: Callable[[Sequence[PeerId]], tuple[PeerId, ...]]) -> Route:
    if not (used := choose(route.peers)):
        return route._replace(is_cut=bool(route.peers))
    if route.slots is not None:
        return route
    return route._replace(peers=used, left_out=tuple(peer for peer in route.peers if peer not in used))


class Split(NamedTuple):
    """Segments by peer.

    - `parts`: the indexes of the segments of each peer, in ascending order.
    - `failed`: what `group_by` raised, by the index of the segment.
    """

    parts: dict[PeerId, list[int]]
    failed: dict[int, BaseException]


def split(route: Route, segments: Segments, waiting: Callable[[PeerId], int], before: int) -> Split:
    """Returns which peer gets each segment: the peer of its group, or else the peer that the routing chooses.

    - `waiting`: returns how many segments wait to be sent to a peer.
    - `before`: how many segments were split before, to continue the peers' round robin.
    """
    if route.slots is None and route.routing is Routing.ROUND_ROBIN:
        count, peers = len(segments), route.peers
        turns = ((peers[(before + first) % len(peers)], first) for first in range(min(count, len(peers))))
        return Split({peer: [*range(first, count, len(peers))] for peer, first in turns}, {})
    if route.slots is None:
        return Split(_split_evenly(route.peers, len(segments), waiting), {})
    parts, failed = dict[PeerId, list[int]](), dict[int, BaseException]()
    for index, (segment, value) in enumerate(zip(segments.ids, segments.values, strict=True)):
        try:
            slot = slot_of_id(segment) if route.group_by is None else slot_of(route.group_by(value))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # `group_by` is a function of the user
            failed[index] = error
        else:
            parts.setdefault(route.slots[slot], []).append(index)
    return Split(parts, failed)


def _split_evenly(peers: Sequence[PeerId], count: int, waiting: Callable[[PeerId], int]) -> dict[PeerId, list[int]]:
    if len(peers) == 1:
        return {peers[0]: [*range(count)]}
    queues = [(waiting(peer), number) for number, peer in enumerate(peers)]
    heapify(queues)
    parts = dict[PeerId, list[int]]()
    for index in range(count):
        queued, number = queues[0]
        parts.setdefault(peers[number], []).append(index)
        heapreplace(queues, (queued + 1, number))
    return parts
