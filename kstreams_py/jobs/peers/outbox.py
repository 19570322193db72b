"""Sends what a peer has for others: segments to the readers of a channel, and items to peers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import xor

from kstreams_py.errors import DecodeError
from kstreams_py.graph.declarations import Channel
from kstreams_py.jobs.cluster.commands import PeerId
from kstreams_py.jobs.identity import Entropy, Pattern, SegmentId, new_patterns
from kstreams_py.jobs.messengers.frames import FailedSegment, Item, SegmentFrame, failed_segment
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.messengers.packing import Destination, pack_segments, unpack_segments
from kstreams_py.jobs.peers.routes import Route, Routes, split
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.task import Readers

logger = logging.getLogger(__name__)


class Outbox(Readers):
    """Sends the segments that one task of this peer makes, to the peers of the tasks that read them.

    Attributes:

    - `inboxes`: the segments that have come for the task, by channel.
    - `failed`: the failures of segments that cannot be sent, for the acknowledgements.
    - `owed`: the inputs and patterns to acknowledge for copies that were counted as sent but cannot be sent.
    """

    def __init__(self, entropy: Entropy, links: Links, task: str, frame_max: int) -> None:
        """Has no routes yet.

        - `task`: the id of the task whose results it sends.
        - `frame_max`: the most bytes of a frame.
        """
        super().__init__(entropy)
        self._links, self._task, self._frame_max = links, task, frame_max
        self._routes: Routes | None = None
        self._unreachable: Collection[PeerId] = ()
        self._kept: dict[tuple[str, str], Segments] = {}
        """The segments that wait for a route, by channel and the task that reads it."""
        self._split: dict[tuple[str, str], int] = {}
        """How many segments were divided among the peers of a task, by the same keys."""
        self.inboxes: dict[str, Segments] = {}
        self.failed: list[FailedSegment] = []
        self.owed: list[tuple[SegmentId, Pattern]] = []

    def set_routes(self, routes: Routes, unreachable: Collection[PeerId] = (), since: int = 0) -> None:
        """Takes new routes, and sends the segments that wait for them or for peers that they leave out.

        - `unreachable`: the peers that cannot be reached. Segments that wait for them do not count as under way.
        - `since`: as in `take_back`.
        """
        self._routes, self._unreachable = routes, unreachable
        left_out = {(peer, route.task) for of in routes.by_channel.values() for route in of for peer in route.left_out}
        unsent = [
            frame
            for peer, task in sorted(left_out)
            if peer in self._links and (flow := self._links[peer].flows.get((routes.job, task))) is not None
            for frame in flow.take_back()
        ]
        kept, self._kept = self._kept, {}
        for (channel, task), segments in kept.items():
            self._deliver_again(channel, task, segments)
        for frame, segments in self._unpack(unsent, routes.job, since):
            self._deliver_again(frame.channel, frame.reader, segments)

    def open_inbox(self, channel: Channel, _: str) -> Segments:
        """Returns the inbox of the task for a channel."""
        return self.inboxes.setdefault(channel.name, Segments())

    def waiting(self, channels: Iterable[Channel]) -> int:
        """Returns how many segments wait to be sent to the slowest peer of these channels.

        Returns more than any limit while no peer of a task can be reached.
        """
        if any(route.is_cut for route in self._of(channels)):
            return sys.maxsize
        kept = (len(self._kept.get((route.channel, route.task), ())) for route in self._of(channels))
        queued = (self._queued(route, peer) for route in self._of(channels) for peer in route.peers)
        return max((*kept, *queued), default=0)

    def is_stuck(self, channels: Collection[Channel], most: int) -> bool:
        """Returns whether the task that fills these channels is stopped by peers that cannot be reached.

        - `most`: the task waits while more segments than this wait for one peer.
        """
        return any(
            route.is_cut or any(self._queued(route, peer) > most for peer in self._unreachable if peer in route.peers)
            for route in self._of(channels)
        )

    def send(self, channel: Channel, made: Segments) -> list[int]:
        """Sends a copy of segments to each task that reads a channel; see Readers."""
        count, sums = len(made.ids), list[int]()
        for route in self._of([channel]):
            copy = Segments(made.ids, new_patterns(self._entropy, count), made.given, made.paths, made.values)
            lost = self._deliver(route.channel, route.task, copy)
            patterns: Sequence[int] = copy.patterns
            if lost:
                patterns = [0 if index in lost else pattern for index, pattern in enumerate(patterns)]
            sums = [*map(xor, sums, patterns)] if sums else [*patterns]
        return sums or [0] * count

    def _of(self, channels: Iterable[Channel]) -> Iterable[Route]:
        by_channel = {} if self._routes is None else self._routes.by_channel
        return (route for channel in channels for route in by_channel.get(channel.name, ()))

    def _queued(self, route: Route, peer: PeerId) -> int:
        assert self._routes is not None
        return self._links[peer].waiting(self._routes.job, route.task) if peer in self._links else 0

    def take_back(self, frames: Iterable[SegmentFrame], job: str, since: int) -> None:
        """Sends again the segments of frames that came back, because they were sent by the routes of an older epoch.

        - `job`, `since`: the job of the task, and the epoch in which this peer got it: older frames are dropped.
        """
        for frame, segments in self._unpack(frames, job, since):
            if self._routes is not None and self._routes.epoch <= frame.epoch:
                # on the same routes they would come back again
                self._kept.setdefault((frame.channel, frame.reader), Segments()).add(segments)
            else:
                self._deliver_again(frame.channel, frame.reader, segments)

    def _unpack(self, frames: Iterable[SegmentFrame], job: str, since: int) -> Iterator[tuple[SegmentFrame, Segments]]:
        for frame in frames:
            if frame.job != job or frame.epoch < since:
                continue
            try:
                yield frame, unpack_segments(frame)
            except DecodeError as error:
                logger.warning(
                    "%s: a peer gave back something other than a segment: %s: it is dropped", self._task, error
                )

    def _deliver_again(self, channel: str, task: str, segments: Segments) -> None:
        lost = self._deliver(channel, task, segments)
        self.owed += [(segments.ids[index], segments.patterns[index]) for index in lost]

    def _deliver(self, channel: str, task: str, segments: Segments) -> set[int]:
        """Sends segments to the peers of a task, or keeps them until there are any.

        Returns the indexes of the segments that cannot be sent; their inputs fail.
        """
        routes = () if self._routes is None else self._routes.by_channel.get(channel, ())
        route = next((each for each in routes if each.task == task), None)
        if route is None or not all(peer in self._links for peer in route.slots or route.peers) or not route.peers:
            self._kept.setdefault((channel, task), Segments()).add(segments)
            return set()
        before = self._split.get((channel, task), 0)
        self._split[channel, task] = before + len(segments)
        parts, failed = split(route, segments, lambda peer: self._queued(route, peer), before)
        lost = self._fail(task, segments, failed)
        for peer, indexes in parts.items():
            assert self._routes is not None
            part = segments if len(indexes) == len(segments) else segments.choose(indexes)
            packed = pack_segments(
                Destination(self._routes.job, self._routes.epoch, channel, task), part, self._frame_max
            )
            for frame in packed.frames:
                self._links[peer].offer(frame)
            lost |= self._fail(self._task, segments, {indexes[at]: error for at, error in packed.refused.items()})
        return lost

    def patterns(self, job: str, segments: Collection[SegmentId]) -> Iterator[tuple[SegmentId, int]]:
        """Yields each of these inputs that has a segment waiting to be sent or taken, with the segment's pattern.

        Leaves out segments that wait for a peer that cannot be reached.
        """
        for kept in self._kept.values():
            yield from choose(kept.ids, kept.patterns, segments)
        for link in self._links:
            for frame in link.frames(to_send=link.other not in self._unreachable):
                if frame.job == job:
                    yield from choose(frame.ids, frame.patterns, segments)

    def _fail(self, task: str, segments: Segments, errors: Mapping[int, BaseException]) -> set[int]:
        self.failed += [failed_segment(segments.ids[index], task, error) for index, error in errors.items()]
        return {*errors}


def choose(
    ids: Sequence[SegmentId], patterns: Sequence[int], wanted: Collection[SegmentId]
) -> Iterator[tuple[SegmentId, int]]:
    """Yields the wanted inputs with their patterns."""
    return ((segment, pattern) for segment, pattern in zip(ids, patterns, strict=True) if segment in wanted)


def send_items(links: Links, peer: PeerId, items: Iterable[Item]) -> None:
    """Sends items to a peer. Drops them if the peer has left: nobody waits for them there."""
    if peer in links:
        links[peer].offer_items(items)
