"""A peer: runs the task that the cluster gives it, and exchanges segments and items with other peers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from kstreams_py.errors import ClientError, FunctionExited, KStreamsError, SettingsError, Stop, Unavailable
from kstreams_py.graph.channels import filled_channels
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import JobId, KillJob, PeerId, SealTask, SignalReady
from kstreams_py.jobs.cluster.membership import ClusterMembership
from kstreams_py.jobs.cluster.state import Assignment, JobPhase, Replica
from kstreams_py.jobs.environment import TIMEOUT, JobEnvironment
from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.messengers.contract import Messenger
from kstreams_py.jobs.messengers.frames import (
    Acks,
    Answers,
    Asks,
    Completions,
    Doubts,
    GiveUps,
    HeldPatterns,
    Item,
    LostInputs,
    Opened,
    ReaderWish,
    SegmentFrame,
)
from kstreams_py.jobs.messengers.link import ENDED
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.peers.agreement import Agreement, ReaderId, Wish
from kstreams_py.jobs.peers.entries import Ackers, Addressed, by_peer
from kstreams_py.jobs.peers.function_task import FunctionTask
from kstreams_py.jobs.peers.input_task import InputTask
from kstreams_py.jobs.peers.outbox import Outbox, send_items
from kstreams_py.jobs.peers.reachability import HEARD_SECONDS, Reachability
from kstreams_py.jobs.peers.routes import READ, find_routes, go_around
from kstreams_py.log_fields import repeated
from kstreams_py.steps.dead_letters import format_error

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 10.0
"""Seconds for a peer to finish its task once it gets another one. Unfinished inputs expire and are read again."""

OPEN_AGAIN_SECONDS: Final = 2.0
"""Seconds until a peer tries again to open a source or target that could not be opened."""

CLOSED_MAX: Final = 100
"""The most closed tasks that are kept for a report: there may be nobody who reports."""

START_AGAIN: Final = ", then start again"
"""The end of the remedy in an error that would end a process. A peer continues, and tries again by itself."""

UNKEPT: Final = Acks | HeldPatterns
"""The items that are not kept for a peer that cannot be reached, so that they do not pile up for hours.

An entry that lacks an acknowledgement is never zero: so its input is found missing, and is read again.
"""

PeerTask = InputTask | FunctionTask


class Peer:
    """One member of a cluster."""

    def __init__(
        self,
        membership: ClusterMembership,
        messenger: Messenger,
        links: Links,
        graphs: Mapping[str, Graph],
        open_environment: Callable[[Graph, int], JobEnvironment],
        clock: Callable[[], float],
    ) -> None:
        """Makes no request.

        - `membership`: the membership, begun by its `start`; another thread may give it its turns.
        - `messenger`: a messenger that has been started.
        - `graphs`: the graphs that this peer can run, by their names in submissions.
        - `open_environment`: makes the environment of a graph's job, at the peer with a number.
        """
        self.membership, self._messenger, self._links = membership, messenger, links
        self._graphs, self._open_environment, self._clock = graphs, open_environment, clock
        self.me = membership.me
        self._seen = Replica()
        """The replica that this peer acts on."""
        self._numbers: dict[int, PeerId] = {}
        self._ackers = Ackers()
        self.assignment: Assignment | None = None
        """The task that this peer has opened or is about to open."""
        self.task: PeerTask | None = None
        """The open task; other threads may read its figures."""
        self.closed = deque[PeerTask](maxlen=CLOSED_MAX)
        """The tasks that were closed since a report took them."""
        self._outbox: Outbox | None = None
        self._draining_until: float | None = None
        """Until when the task may finish its segments before another is opened; None if no other is to be opened."""
        self._open_at = float("-inf")
        """When to try again to open a task that could not be opened."""
        self._interrupted = ""
        """The task that was interrupted because a service it needs does not answer; "" for none."""
        self._epochs: dict[str, int] = {}
        self._agreement: Agreement | None = None
        """The agreement with the other readers of a job, if this peer is a reader."""
        self._reach = Reachability(self.me)
        self._broken_at = float("-inf")
        """When two peers of this peer's job last did not reach each other."""
        self._doubt_at = float("inf")
        """When to doubt all inputs of the ackers: by then, all peers know how reachability has changed."""
        self._died_at = float("-inf")
        """When a peer was last found dead or silent."""
        self._deaths = 0
        """How often deaths had stopped the job of the open task when this peer opened the task."""

    def turn(self) -> bool:
        """Runs one turn of everything, and returns whether there was anything to do.

        1. Act on the newest replica: links to members, the task, its routes.
        2. Take what other peers have sent.
        3. Give the task its turn, if no other peer can have found this one silent.
        4. Send what is due.
        """
        now = self._clock()
        self.membership.turns += 1
        self._adopt(now)
        received = self._messenger.receive()
        self._links.take(received, now)
        for why in self._links.take_refusals():
            logger.warning("%s; its frames are dropped", why)
        for link in self._links:
            for item in link.items():
                self._take(PeerId(link.other), item)
            self._take_back(link.returned())
            if isinstance(self.task, FunctionTask) and self.assignment is not None:
                self.task.arrive(link, link.ready(self._epochs, [(self.assignment.job, self.assignment.task)]))
            else:
                link.ready(self._epochs, ())
        self._look_around(now)
        self._agree(now)
        worked, may_act = bool(received), self.membership.may_act(now)
        if self.task is not None and may_act:
            worked |= self._run_task(self.task)
        self._send(self._ackers.turn(now, may_act=may_act, unreachable=self._numbers_of(self._reach.unreachable)))
        self._links.flush(self._clock(), self._messenger.send)
        return worked

    @property
    def is_polled(self) -> bool:
        """Whether a turn may have something to do even if nothing has come and nothing is due."""
        return self.task is not None and self.task.is_polled

    def _take_back(self, frames: Sequence[SegmentFrame]) -> None:
        if self._outbox is not None and self.assignment is not None:
            self._outbox.take_back(frames, self.assignment.job, self.assignment.since)

    # Peers that cannot be reached.

    def _look_around(self, now: float) -> None:
        """Finds peers that do not reach each other, takes routes around them, and logs that."""
        links, seen, reach = self._links, self.membership.seen, self._reach
        silent, before = links.find_silent(now), reach.unreachable
        is_look = links.looked_at == now
        change = reach.look(now, silent if is_look else None, self._answers, seen.turns_of)
        for peer in change.lost:
            links[peer].reconnect()  # asks until it answers
        is_changed = reach.keep(self._seen.peers, seen.unreachable)
        self.membership.unreachable = reach.silent
        if (is_look or is_changed) and isinstance(self.task, FunctionTask):
            self.task.drop(self._numbers_of(before | reach.unreachable))
        if is_changed:
            self._go_around(reach.unreachable - before)
            self._doubt_at = now + HEARD_SECONDS
        if is_late := now >= self._doubt_at:  # segments lost meanwhile would wait for their input's timeout
            self._doubt_at = float("inf")
            self._ackers.doubt_all()
        is_broken = is_look and self.assignment and reach.is_broken(self._seen.peers_of(self.assignment.job))
        if is_changed or is_late or is_broken:
            self._broken_at = now
        for peer in change.lost:
            logger.warning(
                "peer %s at %s does not answer, and is a member of the cluster that is in no long call: repair the "
                "network between the two. Until then, other peers of its task get its values, values whose keys it has "
                "wait, and inputs that are stuck are read again",
                peer, self._seen.peers[peer].address, extra=repeated(f"silence of {peer}"),
            )  # fmt: skip
        for peer in change.found:
            if peer in links:
                logger.info("peer %s answers again: it gets what has waited for it", peer)
        for peer in change.busy:
            logger.warning(
                "peer %s at %s does not answer, and is a member of the cluster: what is for it waits. A call of its "
                "task takes long: wait for it, or kill the peer: what it had is then read again",
                peer, self._seen.peers[peer].address, extra=repeated(f"silence of {peer}"),
            )  # fmt: skip

    def _answers(self, peer: PeerId) -> bool:
        """Returns whether a peer has answered since it became unreachable; True for a peer that has left."""
        return peer not in self._links or self._links[peer].is_open

    def _go_around(self, lost: Collection[PeerId]) -> None:
        """Takes routes around peers that do not reach others. `lost`: the peers that became unreachable."""
        if self.task is not None and self.assignment is not None:
            name = self.assignment.job
            if name in self._seen.jobs and not self._seen.jobs[name].has_ended:
                self._set_routes(self._seen, name)
                self._keep_ackers(self.task)
        if lost:  # as if they had left: nothing that they hold comes before they answer
            self._ackers.doubt_all()
        for frame in (frame for peer in lost if peer in self._links for frame in self._links[peer].frames(here=False)):
            self._doubt(frame.job, frame.ids)

    def _doubt(self, job: str, segments: Iterable[SegmentId]) -> None:
        """Asks the ackers of inputs whether their segments are still anywhere."""
        self._send([(number, Doubts(job, ids)) for number, ids in by_peer(segments).items()])

    def _numbers_of(self, peers: Collection[PeerId]) -> set[int]:
        return {number for number, peer in self._numbers.items() if peer in peers} if peers else set()

    def _keep_ackers(self, task: PeerTask) -> None:
        """Gives up the inputs of ackers that have left; a reader also gives back those of ackers it does not reach."""
        away = self._numbers_of(self._reach.unreachable) if isinstance(task, InputTask) else ()
        task.keep_ackers({number for number in self._numbers if number not in away})

    # The replica.

    def _adopt(self, now: float) -> None:
        before, after = self._seen, self.membership.replica
        if after is not before:
            self._seen = after
            if after.deaths > before.deaths:
                self._died_at = now
            self._connect(before, after)
            self._find_epochs(after)
            self._find_readers(before, after)
            if self.task is not None and self.me in after.peers:  # the membership's thread may have read a leave
                self._follow(before, after)
        wanted = after.assignments.get(self.me)
        if wanted != self.assignment:
            self._leave_task(now)
        if self.task is None and wanted is not None and now >= self._open_at:
            self._open(wanted, now)

    def _connect(self, before: Replica, after: Replica) -> None:
        """Adds and removes links, so that there is one to each other member."""
        self._numbers = {member.number: peer for peer, member in after.peers.items()}
        for peer in before.peers.keys() - after.peers.keys() - {self.me}:
            rest = self._links.remove(peer)
            self._messenger.disconnect(peer)
            self._take_back(rest.unsent)
            # the segments at this peer are lost: find the entries that wait for them
            self._ackers.doubt_all()
            for frame in rest.unknown:  # their inputs may be opened later
                self._doubt(frame.job, frame.ids)
        for peer, member in after.peers.items():
            if peer == self.me or peer in self._links:
                continue
            try:
                self._messenger.connect(peer, member.address, member.key)
            except SettingsError as error:
                logger.error("peer %s cannot be reached: %s", peer, error, extra=repeated(f"connections to {peer}"))
            self._links.add(peer)

    def _find_epochs(self, replica: Replica) -> None:
        """Takes the epochs of the jobs, and forgets the jobs that have ended."""
        before = self._epochs
        self._epochs = {name: ENDED if job.has_ended else job.epoch for name, job in replica.jobs.items()}
        for name in [
            name for name, epoch in before.items() if epoch != ENDED and self._epochs.get(name, ENDED) == ENDED
        ]:
            for link in self._links:
                link.forget(name)
        for name, job in replica.open_jobs():
            graph = self._graphs.get(job.graph)
            numbers = [replica.peers[peer].number for peer in replica.peers_of(name)]
            timeouts = [channel.timeout or TIMEOUT for channel in filled_channels(() if graph is None else graph.tasks)]
            self._ackers.note(name, numbers, max(timeouts, default=TIMEOUT))
        self._ackers.keep({name for name, _ in replica.open_jobs()}, self._numbers)

    def _find_readers(self, before: Replica, replica: Replica) -> None:
        """Takes the readers of this peer's job, if this peer is one of them. They agree even while a source is away.

        With another task, earlier messages of the readers no longer count: the readers no longer take them back.
        """
        readers = {
            peer: ReaderId(replica.peers[peer].number, each.since)
            for peer, each in replica.assignments.items()
            if each.task.startswith(READ)
        }
        if (me := readers.get(self.me)) is None:
            self._agreement = None
            return
        if self._agreement is None or before.assignments.get(self.me) != replica.assignments[self.me]:
            self._agreement = Agreement(me)
        own = replica.assignments[self.me].job
        self._agreement.keep([each for peer, each in readers.items() if replica.assignments[peer].job == own])

    def _agree(self, now: float) -> None:
        """Sends wishes to the other readers. A task that is not open asks for nothing and has nothing under way."""
        agreement, wanted = self._agreement, self._seen.assignments.get(self.me)
        if agreement is None or wanted is None:
            return
        task = self.task if isinstance(self.task, InputTask) and self.assignment == wanted else None
        asks, is_empty = task is not None and task.asks, task is None or task.is_empty
        away = self._numbers_of(self._reach.unreachable)
        for to, wish in agreement.turn(now, asks=asks, is_empty=is_empty, unreachable=away):
            self._send([(to.number, ReaderWish(wanted.job, wanted.since, to.since, *wish))])

    def _follow(self, before: Replica, after: Replica) -> None:
        """Gives back inputs whose acker has left, and takes the routes of a new epoch."""
        assert self.assignment is not None
        assert self.task is not None
        name = self.assignment.job
        if name not in after.jobs or after.jobs[name].has_ended:
            return
        self._keep_ackers(self.task)
        old = before.jobs.get(name)
        if old is None or old.epoch != after.jobs[name].epoch or old.ready != after.jobs[name].ready:
            self._set_routes(after, name)

    def _set_routes(self, replica: Replica, name: JobId) -> None:
        """Takes the routes of a job; a reader also takes the peers whose ackers have the entries: the readers.

        All inputs of an acker that dies are read again. If peers that call functions had entries too, their death would
        make readers read more inputs again than those whose segments these peers had. And a reader sends itself no
        frames: a sole reader needs none for openings and completions.
        """
        assert self._outbox is not None
        assert self.assignment is not None
        choose = partial(self._reach.choose, others=replica.peers_of(name))
        routes = go_around(find_routes(replica, name, self._graphs[replica.jobs[name].graph].tasks), choose)
        self._outbox.set_routes(routes, self._reach.unreachable, self.assignment.since)
        if isinstance(self.task, InputTask):
            inputs = [task.id for task in replica.jobs[name].tasks if task.is_input]
            peers = choose([peer for task in inputs for peer in replica.ready_peers_of(name, task)])
            own = replica.peers[self.me].number
            self.task.set_ackers([replica.peers[peer].number for peer in peers] or [own], own)

    # The task.

    def _leave_task(self, now: float) -> None:
        """Ends the task once it has finished its segments, after DRAIN_SECONDS, or at once if its job has been stopped.

        It needs no lease: a peer that was found silent may still acknowledge inputs that another peer has taken. The
        source ignores that, by the token of a claim or the generation of a consumer group.
        """
        task, assignment = self.task, self.assignment
        if task is not None and assignment is not None:
            job, wanted = self._seen.jobs.get(assignment.job), self._seen.assignments.get(self.me)
            is_moved = self.me in self._seen.peers and (wanted is None or wanted.job != assignment.job)
            if is_moved and job is not None and job.is_active and not task.is_empty:
                if self._draining_until is None:
                    self._draining_until = now + DRAIN_SECONDS
                if now < self._draining_until:
                    return
            # if a death stopped the job, what was under way may have caused it
            self._close_task(failed=job is not None and job.deaths > self._deaths)
        self.assignment = None

    def _close_task(self, *, failed: bool = False) -> None:
        task, self._outbox, self._draining_until = self.task, None, None
        if task is None:
            return
        try:
            task.close(failed=failed) if isinstance(task, InputTask) else task.close()
        finally:  # in this order: whoever reads `task`, then `closed`, sees the task in one of them
            self.closed.append(task)
            self.task = None

    def _open(self, wanted: Assignment, now: float) -> None:
        """Opens a task, and signals that this peer is ready. Tries again later if a source or a target is away."""
        job = self._seen.jobs[wanted.job]
        graph = self._graphs[job.graph]
        environment = self._open_environment(graph, self._seen.peers[self.me].number)
        outbox = Outbox(environment.entropy, self._links, wanted.task, self._seen.frame_max)
        try:
            if wanted.task.startswith(READ):
                channels = {READ + channel.name: channel for channel in filled_channels(graph.tasks)}
                channel = channels[wanted.task]
                reader = InputTask(graph.name, channel, graph.tasks, wanted.job, outbox, environment, self._may_act)
                reader.wake_by(self._messenger.wake)
                task: PeerTask = reader
            else:
                function = next(each for each in graph.tasks if each.id == wanted.task)
                task = FunctionTask(graph.name, function, graph.tasks, wanted.job, outbox, environment)
        except (Unavailable, ClientError) as error:
            logger.warning("%s: %s; trying again", wanted.task, error, extra=repeated(f"starts of {wanted.task}"))
            self._open_at = now + OPEN_AGAIN_SECONDS
            return
        except KStreamsError as error:
            self._kill(wanted, error)
            return
        self.task, self._outbox, self.assignment, self._deaths = task, outbox, wanted, job.deaths
        self._set_routes(self._seen, wanted.job)
        self.membership.append(SignalReady(self.me, wanted.job, wanted.since))

    def _run_task(self, task: PeerTask) -> bool:
        """Gives the task its turn. An error in the program, or one that stops the job, ends the job for all peers."""
        assert self.assignment is not None
        job = self._seen.jobs.get(self.assignment.job)
        if job is None or job.phase is not JobPhase.RUNNING:
            return False
        try:
            if isinstance(task, InputTask):
                worked = task.turn(self._agreement if self._draining_until is None else None)
            else:
                worked = task.turn()
        except (Unavailable, ClientError) as error:  # the task starts again once the service it needs is back
            name, why = self.assignment.task, str(error).removesuffix(START_AGAIN)
            again = repeated(f"interruptions of {name}", why)
            logger.warning("%s: %s; it tries again every %g s", name, why, OPEN_AGAIN_SECONDS, extra=again)
            self._interrupted = name
            dropped = task.ids if isinstance(task, FunctionTask) else set[SegmentId]()
            self._close_task()
            self._doubt(self.assignment.job, dropped)
            self._open_at = self._clock() + OPEN_AGAIN_SECONDS
            return True
        except (KStreamsError, Stop) as error:
            self._end_by(error)
            return True
        if self._interrupted and (worked or isinstance(task, InputTask)):
            if self._interrupted == self.assignment.task:
                logger.info("%s: it works again", self._interrupted)
            self._interrupted = ""
        if isinstance(task, InputTask):
            self._care_for_inputs(task)
        self._send(task.items())
        if isinstance(task, FunctionTask) and task.stop is not None:
            self._end_by(task.stop)
        return worked

    def _end_by(self, error: BaseException) -> None:
        """Ends the job for an error that stops it.

        Raises an error by which an input ends each peer that gets it: then only this peer ends.
        """
        if isinstance(error, FunctionExited | MemoryError):  # the deaths of its peers identify the input
            raise error
        assert self.assignment is not None
        self._kill(self.assignment, error)

    def _may_act(self) -> bool:
        return self.membership.may_act(self._clock())

    def _care_for_inputs(self, task: InputTask) -> None:
        assert self.assignment is not None
        job = self.assignment.job
        task.doubt()
        # a leave takes back the seals of a task: inputs of the peer that left may come again
        is_sealed = self.me in self._seen.jobs[job].sealed.get(self.assignment.task, ())
        if task.is_exhausted and not is_sealed and self.membership.is_idle:
            self.membership.append(SealTask(job, self.assignment.task, self.me, self.assignment.since))

    def _kill(self, assignment: Assignment, error: BaseException) -> None:
        """Ends a job: another start of the same code would end the same way."""
        reason = f"{type(error).__name__}: {format_error(error)}"
        if not isinstance(error, KStreamsError):  # such an error names its task itself
            reason = f"{assignment.task}: {reason}"
        logger.error("job %s ends: %s", assignment.job, reason)
        self.membership.append(KillJob(assignment.job, reason))
        self._close_task()
        self._open_at = self._clock() + OPEN_AGAIN_SECONDS

    # Items.

    def _send(self, addressed: Addressed) -> None:
        """Sends items. Takes items for this peer at once."""
        own = self._seen.peers[self.me].number if self.me in self._seen.peers else -1
        for number, item in addressed:
            if number == own:
                self._take(self.me, item)
            elif (peer := self._numbers.get(number)) is None:
                continue
            elif peer not in self._reach.unreachable or not isinstance(item, UNKEPT):
                send_items(self._links, peer, [item])

    def _take(self, sender: PeerId, item: Item) -> None:
        member = self._seen.peers.get(sender)
        if member is None:
            return
        if isinstance(item, Asks):  # the sender waits for the answer, whatever this peer knows of the job
            self._send([(member.number, self._answer(item))])
            return
        job = self._seen.jobs.get(JobId(item.job))
        if job is None or job.has_ended:
            return
        if isinstance(item, Opened | Acks | HeldPatterns | Doubts | Answers):
            self._send(self._ackers.take(item, member.number))
        elif isinstance(item, ReaderWish):
            agreement, wanted = self._agreement, self._seen.assignments.get(self.me)
            if agreement is not None and wanted is not None and (wanted.job, wanted.since) == (item.job, item.to):
                agreement.take(ReaderId(member.number, item.since), Wish(item.request, item.answer))
        elif self.assignment is not None and item.job == self.assignment.job:
            self._take_for_task(item)

    def _take_for_task(self, item: Item) -> None:
        if isinstance(self.task, FunctionTask):
            if isinstance(item, GiveUps):
                self.task.give_up(item.ids)
        elif isinstance(self.task, InputTask):
            if isinstance(item, Completions):
                self.task.complete(item.ids, item.failed)
            elif isinstance(item, LostInputs):
                broken_at = self._clock() if item.is_broken else self._broken_at
                self.task.lose(item.ids, self._died_at, broken_at)

    def _answer(self, asks: Asks) -> Answers:
        """Returns the patterns of the requested inputs' segments that are here."""
        wanted, held = {*asks.ids}, dict[SegmentId, int]()
        if self.assignment is not None and asks.job == self.assignment.job:
            found = [*self._outbox.patterns(asks.job, wanted)] if self._outbox is not None else []
            if isinstance(self.task, FunctionTask) and not self.task.is_stuck:
                found += self.task.patterns(wanted)
            for segment, pattern in found:
                held[segment] = held.get(segment, 0) ^ pattern
        is_broken = not self._reach.unreachable.isdisjoint(self._seen.peers_of(JobId(asks.job)))
        return Answers(asks.job, [*held], [*held.values()], asks.number, is_broken)

    def abandon(self) -> None:
        """Drops everything, as a dying process does: the claims last until their lease ends."""
        if isinstance(self.task, InputTask):
            self.task.abandon()
        elif self.task is not None:
            self.task.close()
        self._messenger.close()

    def close(self) -> None:
        """Gives back the inputs under way, and closes all connections except the membership's."""
        self._close_task()
        self._messenger.close()
