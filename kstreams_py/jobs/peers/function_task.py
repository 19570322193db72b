"""The task of a peer that calls a function: takes the segments of other peers, and acknowledges them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from kstreams_py.errors import DecodeError
from kstreams_py.graph.channels import JobTask, sort_tasks
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.identity import NAME_BYTES, SegmentId
from kstreams_py.jobs.job import Outages, open_runner
from kstreams_py.jobs.messengers.frames import HeldPatterns, SegmentFrame, failed_segment
from kstreams_py.jobs.messengers.link import Link
from kstreams_py.jobs.messengers.packing import unpack_segments
from kstreams_py.jobs.messengers.pins import acker_of
from kstreams_py.jobs.peers.entries import Acknowledgements, Addressed, by_peer
from kstreams_py.jobs.peers.outbox import Outbox, choose
from kstreams_py.jobs.runners import WAITING_MAX, GatheringRunner, Turned

logger = logging.getLogger(__name__)

INBOX: Final = 1_000
"""The most segments in the inboxes of a task: others wait with their links, which get no credit for them."""


class FunctionTask:
    """One task of a job, with the segments that have come for it."""

    def __init__(
        self, graph: str, task: JobTask, tasks: Sequence[JobTask], job: str, outbox: Outbox, environment: JobEnvironment
    ) -> None:
        """Connects to nothing yet. `tasks`: all tasks of the graph. `outbox`: sends the results."""
        self.graph, self.id, self._job = graph, task.id, job
        self._outbox, self._outputs = outbox, task.outputs
        self.runner = open_runner(graph, task, sort_tasks(tasks), outbox, environment)
        self.outages = Outages()
        self.stop: BaseException | None = None
        """The error that stops the job; None if there is none."""
        self._clock = environment.clock
        self._arrived: deque[tuple[Link, SegmentFrame]] = deque()
        self._acks = Acknowledgements(job)
        self._held: dict[SegmentId, int] = {}
        """The patterns that wait at this gather, as the ackers know them."""

    def arrive(self, link: Link, frames: Iterable[SegmentFrame]) -> None:
        """Takes frames from a peer. `link`: the link to the peer, which gives it credit back."""
        self._arrived += ((link, frame) for frame in frames)

    def turn(self) -> bool:
        """Gives the task a turn, and returns whether it had anything to do.

        Afterwards, `stop` is the error that stops the job, if there is one.
        """
        while self._arrived and self.runner.waiting_of(self.runner.inputs) < INBOX:
            link, frame = self._arrived.popleft()
            link.release(frame.job, frame.reader, len(frame))
            try:
                segments = unpack_segments(frame)
                if min(map(len, segments.given)) <= NAME_BYTES:
                    raise DecodeError("an input without a key")
                self._outbox.inboxes[frame.channel].add(segments)
            except (DecodeError, KeyError) as reason:
                # the audit finds its inputs missing: they are read again
                logger.warning(
                    "%s: peer %s sent something other than a segment: %s: it is dropped", self.id, link.other, reason
                )
        turned = Turned()
        with self.outages.of(self.id):
            turned = self.runner.turn(self._clock())
            if turned.ids:
                self.outages.answered(self.id)
        for segment, error in turned.failed:
            self._acks.add_failure(failed_segment(segment, self.id, error))
        self._acknowledge(turned)
        self.stop = turned.stop
        return bool(turned.ids)

    def _acknowledge(self, turned: Turned) -> None:
        for failed in self._outbox.failed:
            self._acks.add_failure(failed)
        if turned.ids:
            self._acks.add(turned.ids, turned.acks)
        for segment, pattern in self._outbox.owed:
            self._acks.add([segment], [pattern])
        self._outbox.failed, self._outbox.owed = [], []

    def items(self) -> Addressed:
        """Returns the items to send to ackers."""
        return [*self._acks.take(), *self._hold()]

    def _hold(self) -> Addressed:
        """Returns the patterns that wait at a gather and have changed since they were last sent to their ackers."""
        if not isinstance(self.runner, GatheringRunner):
            return []
        now = {segment: self.runner.patterns(segment) for segment in self.runner.take_arrived() | self._held.keys()}
        changed = {segment: value for segment, value in now.items() if value != self._held.get(segment, 0)}
        self._held = {segment: value for segment, value in now.items() if value}
        return [
            (number, HeldPatterns(self._job, ids, [changed[segment] for segment in ids]))
            for number, ids in by_peer(changed).items()
        ]

    def give_up(self, segments: Iterable[SegmentId]) -> None:
        """Gives up the segments that wait at a gather for these inputs, which have no other segments under way."""
        if isinstance(self.runner, GatheringRunner):
            for segment in segments:
                if pattern := self.runner.patterns(segment):
                    self.runner.give_up(segment)
                    self._held.pop(segment, None)
                    self._acks.add([segment], [pattern])

    def drop(self, ackers: Collection[int]) -> None:
        """Drops segments that wait at a gather if their inputs' ackers cannot be reached: an audit finds them missing.

        If they were given up, their acknowledgement might still arrive: the input would be complete without its pair.
        """
        if isinstance(self.runner, GatheringRunner) and self._held:
            dropped = [segment for segment in self._held if acker_of(segment) in ackers]
            self.runner.forget(dropped)
            for segment in dropped:
                del self._held[segment]

    @property
    def is_stuck(self) -> bool:
        """Whether the task calls no function, because its results would wait for peers that cannot be reached."""
        return self._outbox.is_stuck(self._outputs, WAITING_MAX)

    def patterns(self, segments: Collection[SegmentId]) -> Iterator[tuple[SegmentId, int]]:
        """Yields each of these inputs that has a segment here, with its pattern."""
        for _, frame in self._arrived:
            yield from choose(frame.ids, frame.patterns, segments)
        for part in self.runner.parts():
            yield from choose(part.ids, part.patterns, segments)
        if isinstance(self.runner, GatheringRunner):
            yield from ((segment, pattern) for segment in segments if (pattern := self.runner.patterns(segment)))

    @property
    def ids(self) -> set[SegmentId]:
        """The inputs that have a segment here."""
        here = {segment for part in self.runner.parts() for segment in part.ids} | self._held.keys()
        return here.union(*(frame.ids for _, frame in self._arrived))

    @property
    def waiting(self) -> int:
        """How many segments wait here. Any thread may read it."""
        return self.runner.waiting + sum(len(frame) for _, frame in self._arrived.copy())

    @property
    def is_polled(self) -> bool:
        """Whether calls may end, or become due, without a signal."""
        return self.runner.is_busy or self.runner.retrying > 0

    @property
    def is_empty(self) -> bool:
        """Whether no segment is here."""
        return not self._arrived and not self.runner.waiting and not self.runner.is_busy

    def keep_ackers(self, members: Collection[int]) -> None:
        """Gives up segments that wait at a gather if their inputs' acker has left."""
        self.give_up([segment for segment in self._held if acker_of(segment) not in members])

    def close(self) -> None:
        """Drops the segments here, and closes the connections to the target and to topics."""
        for link, frame in self._arrived:
            link.release(frame.job, frame.reader, len(frame))
        self._arrived.clear()
        self.runner.close()
