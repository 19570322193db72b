"""The task of a peer that reads a source: sends its inputs on, and acknowledges complete inputs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.source import WakingConnection
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.inputs import SourceInputs
from kstreams_py.jobs.job import LEASE_MAX, Outages, open_inputs
from kstreams_py.jobs.messengers.frames import Doubts, FailedSegment, Opened
from kstreams_py.jobs.messengers.pins import pin_ids
from kstreams_py.jobs.peers.agreement import Agreement
from kstreams_py.jobs.peers.entries import Addressed, by_peer
from kstreams_py.jobs.peers.outbox import Outbox
from kstreams_py.log_fields import repeated
from kstreams_py.printable import count_are

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""No input is read while more segments than this wait to be sent to one peer."""


def error_of(failed: FailedSegment) -> Exception:
    """Returns the error of a function that another peer called, as an exception whose class has the same name."""
    kind = failed.kind if failed.kind.isidentifier() else "Exception"
    error: Exception = type(kind, (Exception,), {})(failed.text)
    return error


class InputTask:
    """The inputs of one source that this peer has read."""

    def __init__(
        self,
        graph: str,
        channel: Channel,
        tasks: Sequence[JobTask],
        job: str,
        outbox: Outbox,
        environment: JobEnvironment,
        may_act: Callable[[], bool],
    ) -> None:
        """Connects to the source. Raises SourceUnavailable and SettingsError.

        - `may_act`: returns whether this peer may keep its claims: a peer that others have found silent must lose them.
        """
        self._may_act = may_act
        self.graph = graph
        self._job, self.channel, self._outbox, self._environment = job, channel, outbox, environment
        self._ackers: Sequence[int] = ()
        self._own = 0
        self.must_wait, self._is_only = False, True
        """Whether suspects of another reader go first; and whether there is no other reader."""
        self.outages = Outages()
        self.inputs: SourceInputs = open_inputs(graph, channel, tasks, environment, self._new_ids)
        self._items = Addressed()
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._run_keeper, name="claims", daemon=True)
        self._keeper.start()

    def set_ackers(self, ackers: Sequence[int], own: int) -> None:
        """Takes the numbers of the peers that have an acker in this epoch, and the number of this peer."""
        self._ackers, self._own = ackers, own

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Takes the function that ends the peer's wait, for a source that learns of new inputs immediately."""
        if isinstance(self.inputs.connection, WakingConnection):
            self.inputs.connection.wake_by(wake)

    @property
    def asks(self) -> bool:
        """Whether suspects keep the other readers waiting; False while the source is away."""
        return self.inputs.keeps_others_waiting and self.inputs.name not in self.outages.away

    @property
    def is_polled(self) -> bool:
        """Whether inputs come without a signal."""
        return not isinstance(self.inputs.connection, WakingConnection)

    def _new_ids(self, count: int) -> list[SegmentId]:
        return pin_ids(self._environment.entropy, count, self._ackers, self._own)

    def turn(self, agreement: Agreement | None) -> bool:
        """Reads inputs, acknowledges those that are complete, and returns whether there was anything to do.

        - `agreement`: the agreement with the other readers of the job; None if no more inputs may be read.
        """
        worked, self.must_wait = False, agreement is not None and agreement.must_wait
        self._is_only = agreement is None or agreement.is_only
        if agreement is not None:
            with self.outages.of(self.inputs.name):
                worked = self._read(self._environment.clock(), agreement)
        with self.outages.of(self.inputs.name):
            worked |= self.inputs.settle(self._environment.clock())
        with self.outages.of(self.inputs.name):
            self.inputs.return_expired()
        return worked

    def _read(self, now: float, agreement: Agreement) -> bool:
        if self._outbox.waiting([self.channel]) > WAITING_MAX:
            return False
        segments = self.inputs.read(now, others_wait=agreement.must_wait, is_alone=agreement.is_alone)
        if self.inputs.asked_at == now:
            self.outages.answered(self.inputs.name)
        if segments:
            self._send(segments.ids, self._outbox.send(self.channel, segments))
        return bool(segments)

    def _send(self, ids: list[SegmentId], patterns: list[int]) -> None:
        for failed in self._outbox.failed:
            self.inputs.fail(failed.id, failed.task, error_of(failed))
        self._outbox.failed = []
        by_acker = by_peer(ids)
        if len(by_acker) == 1:
            self._items += [(number, Opened(self._job, opened, patterns)) for number, opened in by_acker.items()]
            return
        of = dict(zip(ids, patterns, strict=True))
        for number, opened in by_acker.items():
            self._items.append((number, Opened(self._job, opened, [of[segment] for segment in opened])))

    def items(self) -> Addressed:
        """Returns the items to send to ackers."""
        items, self._items = self._items, Addressed()
        return items

    def complete(self, ids: Iterable[SegmentId], failed: Iterable[FailedSegment]) -> None:
        """Notes that inputs are complete. `failed`: their failed segments."""
        for each in failed:
            self.inputs.fail(each.id, each.task, error_of(each), each.trace)
        self.inputs.complete(ids)

    def keep_ackers(self, members: Collection[int]) -> None:
        """Gives back at once the inputs whose entries are at peers that have left or cannot be reached.

        - `members`: the numbers of all others.
        """
        for number, segments in by_peer(self.inputs.pending.segments).items():
            if number not in members:
                self.inputs.give_up_all(segments, failed=False)

    def lose(self, segments: Iterable[SegmentId], died_at: float, broken_at: float) -> None:
        """Gives back inputs that wait for a segment that no peer has.

        - `died_at`: when a peer was last seen to die. For inputs that were read before then, the death counts as an
          attempt.
        - `broken_at`: when two peers of the job last did not reach each other. Inputs that were read before then may
          have been lost between these peers, and not by the death: for them, the death does not count.
        """
        for segment in segments:
            since = self.inputs.pending.since(segment)
            self.inputs.give_up_all([segment], failed=since is not None and broken_at < since <= died_at)

    def doubt(self) -> None:
        """Asks the ackers of overdue inputs whether their segments are still anywhere."""
        now, inputs = self._environment.clock(), self.inputs
        if not (overdue := inputs.pending.overdue(now)):
            return
        # they may do nothing but wait for another attempt, and never end
        if inputs.give_up_waiting(overdue, now, others_wait=self.must_wait, is_only=self._is_only):
            logger.warning(
                "%s: %s given back after some time, because others wait: inputs whose peers died are read while "
                "nothing else is under way", inputs.name, count_are(len(overdue), "input"),
            )  # fmt: skip
        else:
            inputs.pending.extend(overdue, now)
            logger.warning(
                "%s: %s still under way after some time: asking the peers for them", inputs.name,
                count_are(len(overdue), "input"), extra=repeated(f"overdue inputs of {inputs.name}"),
            )  # fmt: skip
            self._items += [(number, Doubts(self._job, ids)) for number, ids in by_peer(overdue).items()]

    @property
    def is_exhausted(self) -> bool:
        """Whether no input is left, and none is under way."""
        return self.inputs.is_exhausted

    @property
    def is_empty(self) -> bool:
        """Whether no input is under way."""
        return not self.inputs.pending

    def keep(self) -> None:
        """Keeps the claims, if this peer may act."""
        if self._may_act():
            self.inputs.connection.keep()

    def _run_keeper(self) -> None:
        """Keeps the claims until the task ends; runs in a thread of its own."""
        while not self._ended.wait(min(self.inputs.connection.lease, LEASE_MAX) / 3):
            try:
                self.keep()
            except Exception as error:  # the next attempt may succeed
                logger.info("%s: cannot keep the claims: %s", self.inputs.name, error)

    def abandon(self) -> None:
        """Stops keeping the claims, and gives nothing back."""
        self._ended.set()
        self._keeper.join()

    def close(self, *, failed: bool = False) -> None:
        """Gives back the inputs under way, and closes the connection. `failed`: whether this counts as a death."""
        self.abandon()
        self.inputs.close(failed=failed)
