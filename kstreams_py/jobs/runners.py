"""Runs a task: takes the segments of its inboxes, calls its function, sends or stores the results, and acknowledges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from heapq import heapify, heappop, heappush
from itertools import count
from operator import xor
from typing import Any, Final, NamedTuple

from kstreams_py.errors import DecodeError, GraphError, KStreamsError, RecordRefused, Stop
from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.retry import Then
from kstreams_py.jobs.adaptive_limit import AdaptiveLimit
from kstreams_py.jobs.attempts import FailedAttempt, FailedAttempts
from kstreams_py.jobs.copies import copy_value
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.gathering import Gathering, Held
from kstreams_py.jobs.identity import ROOT, Origin, Pattern, SegmentId, cut_path, extend_all, name_in_path, origins_of
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.task import (
    FailedCall,
    Function,
    Made,
    Readers,
    Sending,
    Storing,
    arguments_of,
    copy_arguments,
    raised,
)
from kstreams_py.jobs.traces import TaskTraces
from kstreams_py.metrics import Counters
from kstreams_py.steps.calls import Call
from kstreams_py.steps.dead_letters import format_error
from kstreams_py.steps.tracing import Note

CALLED_MAX: Final = 10_000
"""The maximum number of segments of a task that are run before the next task has its turn."""

CALLED_FIRST: Final = 100
"""The maximum number in the first turn, before the speed of the function is known."""

WAITING_MAX: Final = 100_000
"""A task gets no turn while more segments than this wait in a channel that it writes to: one input may become many."""

TURN_SECONDS: Final = 0.1
"""Seconds that a turn of a task may take: a stop waits for the turn's end, and its rows are stored in one write."""


QUEUED_MAX: Final = 10_000
"""The maximum number of segments that wait behind others of their group, so that other groups still get calls."""


def shares(inboxes: Sequence[Segments], free: int) -> Iterator[tuple[Segments, int]]:
    """Yields each inbox with the number of segments to take from it, so that no full inbox keeps the others waiting.

    Each inbox gets an equal share; the fuller ones also get what the emptier ones do not need.
    """
    for left, inbox in zip(range(len(inboxes), 0, -1), sorted(inboxes, key=len), strict=True):
        share = min(len(inbox), max(0, -(-free // left)))
        free -= share
        yield inbox, share


class Turned(NamedTuple):
    """The outcome of a turn of a task.

    - `ids`, `acks`: for each finished copy, its input, and the XOR of its pattern and the patterns made from it.
    - `failed`: the inputs of segments that failed, each with the error.
    - `stop`: the error that stops the job; its segment is not finished.
    """

    ids: Sequence[SegmentId] = ()
    acks: Sequence[int] = ()
    failed: Sequence[tuple[SegmentId, BaseException]] = ()
    stop: BaseException | None = None


class TaskRunner:
    """A task with its inboxes: one for each input."""

    def __init__(
        self,
        graph: str,
        task: JobTask,
        readers: Readers,
        environment: JobEnvironment,
        traces: TaskTraces | None = None,
    ) -> None:
        """`traces`: makes the spans of its calls; None for no tracing."""
        self.id, self.inputs = task.id, task.inputs
        self._traces = traces
        self._task, self._environment = task, environment
        self._readers = readers
        self._inboxes = [readers.open_inbox(channel, task.id) for channel in task.inputs]
        self._function = Function(task, environment.clock)
        self._name = name_in_path(task.id)
        self._sending = Sending(task, readers, environment.open_outputs(task), traces) if task.written else None
        self._storing = Storing(task, environment.open_sink, f"{graph}.{task.id}") if task.target is not None else None
        self._unstored: tuple[Segments, list[Any]] | None = None
        """The results whose rows the target could not store yet."""
        self.attempts = FailedAttempts(task.id)
        self._last_attempt: BaseException | None = None
        """The error of a segment whose retry stops the job."""
        self._again: list[tuple[float, int, Segments]] = []
        """A heap of the segments that are run again, by the time of the next attempt."""
        self._rest = Segments()
        """The segments that were taken but not run, because the turn had no time left."""
        self._running: Sequence[SegmentId] = ()
        """The inputs of the segments of this turn."""
        self._numbers = count()
        self._limit = AdaptiveLimit(TURN_SECONDS, CALLED_FIRST, CALLED_MAX)
        self.counters = Counters()
        self.failed = 0
        """How many segments have failed: their inputs are refused."""
        self.newest_failure = ""
        """The newest failure of a segment, as text."""

    @property
    def waiting(self) -> int:
        """How many segments wait here."""
        return sum(map(len, self._inboxes)) + len(self._rest) + len(self._again)

    def waiting_of(self, channels: Collection[Channel]) -> int:
        """Returns how many segments wait here to be taken from the inboxes of these channels."""
        inboxes = zip(self.inputs, self._inboxes, strict=True)
        return sum(len(inbox) for channel, inbox in inboxes if channel in channels)

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way, which may end at any time."""
        return False

    @property
    def retrying(self) -> int:
        """How many segments wait for another attempt."""
        return len(self._again)

    @property
    def ended(self) -> int:
        """How many calls of the function have ended in the job's thread."""
        return self._function.ended

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """The start of the oldest call outside the job's thread, and a function that finds its frame: see Calls."""
        return None

    def parts(self) -> list[Segments]:
        """Returns the segments that are here between two turns, in parts. Any thread may call this method."""
        unstored = self._unstored
        parts = [*self._inboxes, self._rest, *(segments for _, _, segments in self._again)]
        return parts if unstored is None else [*parts, unstored[0]]

    def paused(self) -> set[SegmentId]:
        """Returns the inputs whose segments here all wait for another attempt."""
        waiting = {id(part) for _, _, part in self._again}
        paused = {segment for _, _, part in self._again for segment in part.ids}
        return paused.difference(*(part.ids for part in self.parts() if id(part) not in waiting))

    def has(self, segment: SegmentId) -> bool:
        """Returns whether an input has a segment here, even during a turn. Any thread may call this method."""
        return segment in self._running or any(segment in part.ids for part in self.parts())

    def measures(self) -> dict[str, float]:
        """Returns what is measured here, as `Counters.measures`."""
        return {**self.counters.measures(), "failed": self.failed}

    def turn(self, now: float) -> Turned:
        """Runs the next segments. `now`: the time by the environment's clock.

        Raises SinkAway; the next turn then stores the same results again.
        """
        if self._task.outputs and self._readers.waiting(self._task.outputs) > WAITING_MAX:
            return Turned()
        if self._unstored is None:
            taken = self._take(now)
            self._running, began = [*taken.ids], self._environment.clock()
            segments, results = self._run(taken)
            self._count_time(len(segments), self._environment.clock() - began)
            if self._task.retry is not None:
                segments, results = self._repeat(segments, results, now)
            self._end(segments)
            self._unstored = segments, results
        segments, results = self._unstored
        if self._sending is not None:
            made = self._sending.send(segments, results)
        elif self._storing is not None:
            made = self._storing.store(segments, results)
        else:
            failed = [(index, each.error) for index, each in enumerate(results) if type(each) is FailedCall]
            made = Made(0, segments.patterns, failed)
        self._unstored, self._running = None, ()
        self._limit.took(len(segments), self._environment.clock() - now)
        return self._turned(segments, made)

    def _turned(self, segments: Segments, made: Made) -> Turned:
        """Returns the outcome of a turn. A segment whose error stops the job is unfinished: its input is given back."""
        stopping = {index: error for index, error in made.failed if self._stops(error)}
        failed = [(segments.ids[index], error) for index, error in made.failed if index not in stopping]
        for _, error in failed:
            self.newest_failure = f"{type(error).__name__}: {format_error(error)}"
        done = [index for index in range(len(segments)) if index not in stopping] if stopping else range(len(segments))
        self.counters.records_in += len(done)
        self.counters.records_out += made.sent
        self.failed += len(failed)
        if not stopping:
            return Turned(segments.ids, made.patterns, failed)
        stop = next(iter(stopping.values()))
        return Turned([segments.ids[i] for i in done], [made.patterns[i] for i in done], failed, stop)

    def _end(self, segments: Segments) -> None:
        """Forgets segments for which the function is not called again."""

    def _count_time(self, steps: int, seconds: float) -> None:
        """Counts the time of the calls for some segments."""
        self.counters.ran(steps, seconds)

    def _take_due(self, now: float, limit: int) -> Segments:
        """Takes the segments that the last turn had no time for, and those due for another attempt, up to a limit."""
        taken, self._rest = self._rest, Segments()
        while self._again and self._again[0][0] <= now and len(taken) < limit:
            taken.add(heappop(self._again)[2])
        return taken

    def _take(self, now: float) -> Segments:
        """Takes the segments to run now: those that are due, then a share of each inbox."""
        taken = self._take_due(now, self._limit.limit)
        for inbox, share in shares(self._inboxes, self._limit.limit - len(taken)):
            taken.add(inbox.take(share))
        return taken

    def _run(self, segments: Segments) -> tuple[Segments, list[Any]]:
        """Runs segments while the turn has time for them; returns the segments that were run, and their results."""
        if self._traces is not None:
            return self._run_in_spans(segments, self._traces)
        until = self._environment.clock() + TURN_SECONDS
        origins = self._origins(segments) if self._task.wants_step else iter(())
        results = self._function.results(segments.values, origins, until)
        done, self._rest = segments.take(len(results)), segments
        return done, results

    def _run_in_spans(self, segments: Segments, traces: TaskTraces) -> tuple[Segments, list[Any]]:
        """Runs segments one by one, each in a span."""
        clock, done, results = self._environment.clock, Segments(), list[Any]()
        until = clock() + TURN_SECONDS
        while segments and (not done or clock() < until):
            one = segments.take(1)
            with self._span(one, traces) as note:
                (result,) = self._function.results(one.values, self._origins(one))
                is_failed = type(result) is FailedCall
                note(0 if is_failed else traces.count(result), result.error if is_failed else None)
            results.append(result)
            done.add(one)
        self._rest = segments
        return done, results

    def _span(self, one: Segments, traces: TaskTraces) -> AbstractContextManager[Note]:
        """Makes the span of a segment's call the current span."""
        (origin,), (pattern,) = self._origins(one), one.patterns
        return traces.call(one.ids[0], one.paths[0], origin, self.attempts.failed(pattern) + 1)

    def _origins(self, segments: Segments) -> Iterator[Origin]:
        """Returns the origins of the steps of segments."""
        return origins_of(segments.given, extend_all(segments.paths, self._name))

    def _repeat(self, segments: Segments, results: list[Any], now: float) -> tuple[Segments, list[Any]]:
        """Keeps the segments that are to be run again, and returns the others with their results."""
        retry = self._task.retry
        assert retry is not None
        if not self.attempts and FailedCall not in map(type, results):
            return segments, results
        kept = list[int]()
        for index, result in enumerate(results):
            pattern = segments.patterns[index]
            error = result.error if type(result) is FailedCall else None
            if error is None or not retry.covers(error) or isinstance(error, self._task.stop_on):
                self.attempts.forget([pattern])
                kept.append(index)
                continue
            attempts = self.attempts.add(pattern)
            if not retry.is_last(attempts):
                self.counters.retried()
                self.newest_failure = f"{type(error).__name__}: {format_error(error)}"
                seconds = retry.wait(attempts, self._environment.chance())
                self.attempts.note(FailedAttempt(segments.ids[index], self.newest_failure, attempts, seconds))
                heappush(self._again, (now + seconds, next(self._numbers), segments.choose([index])))
                continue
            self.attempts.forget([pattern])
            if retry.then is Then.STOP:
                self._last_attempt = error
            kept.append(index)
        return (segments, results) if len(kept) == len(results) else (segments.choose(kept), [results[i] for i in kept])

    def _stops(self, error: BaseException) -> bool:
        """Returns whether an error stops the job: it is a mistake in the program, or was raised to stop it."""
        is_of_program = isinstance(error, KStreamsError) and not isinstance(error, DecodeError | RecordRefused)
        return is_of_program or isinstance(error, Stop | MemoryError) or self.asks_to_stop(error)

    def asks_to_stop(self, error: BaseException) -> bool:
        """Returns whether the graph says that this error stops the job."""
        return isinstance(error, self._task.stop_on) or error is self._last_attempt

    def forget(self, inputs: Collection[SegmentId]) -> None:
        """Forgets inputs that are given back: all their segments here wait for another attempt."""
        dropped = {*inputs}
        given_up = [part for _, _, part in self._again if not dropped.isdisjoint(part.ids)]
        for part in given_up:
            self._end(part)
            self.attempts.forget(part.patterns)
        if given_up:
            self._again = [each for each in self._again if dropped.isdisjoint(each[2].ids)]
            heapify(self._again)

    def log_attempts(self, name_input: Callable[[SegmentId], str]) -> None:
        """Logs the attempts that have failed since the last call. `name_input`: as in FailedAttempts.log."""
        if self._task.retry is not None:
            self.attempts.log(self._environment.clock(), self._task.retry, name_input)

    def close(self) -> None:
        """Closes the connections to the target and the topics."""
        if self._sending is not None:
            self._sending.close()
        if self._storing is not None:
            self._storing.close()


class OverlappingTaskRunner(TaskRunner):
    """Runs a task whose calls overlap: other tasks run while they are under way."""

    def __init__(
        self,
        graph: str,
        task: JobTask,
        readers: Readers,
        environment: JobEnvironment,
        traces: TaskTraces | None = None,
    ) -> None:
        super().__init__(graph, task, readers, environment, traces)
        called = task if traces is None else traces.wrap()
        self._calls = environment.open_calls(called, lambda _, returned: copy_value(returned))
        self._open: dict[int, Segments] = {}
        """The segment of each call under way, by ticket."""
        self._queues: dict[Hashable, deque[Segments]] = {}
        """The segments that wait behind a call of their group, by group."""
        self._groups: dict[Pattern, Hashable | FailedCall] = {}
        """By pattern, the group of a segment whose channel has `group_by`, or what `group_by` raised."""
        self._uncalled = list[tuple[Segments, FailedCall]]()
        """The segments that fail in this turn without a call."""

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way, which may end at any time."""
        return bool(self._open)

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """The start of the oldest call under way, and a function that finds its frame: see Calls."""
        return self._calls.oldest

    def parts(self) -> list[Segments]:
        """Returns the segments that are here, including those whose calls are under way."""
        queued = (segments for queue in self._queues.copy().values() for segments in queue.copy())
        return [*super().parts(), *self._open.copy().values(), *queued]

    def _count_time(self, steps: int, seconds: float) -> None:
        """Does nothing: the time of each call is counted when the call has ended."""

    def _take(self, now: float) -> Segments:
        """Takes segments until as many wait for a call as calls may run concurrently; none if the queues are full."""
        queued = sum(map(len, self._queues.values()))
        free = 2 * self._task.concurrency - len(self._open) if queued < QUEUED_MAX else 0
        taken = self._take_due(now, free)
        by_inbox = dict(zip(map(id, self._inboxes), self._task.inputs, strict=True))
        for inbox, share in shares(self._inboxes, free - len(taken)):
            part = inbox.take(share)
            if (group_by := by_inbox[id(inbox)].group_by) is not None:
                self._group(group_by, part)
            taken.add(part)
        return taken

    def _group(self, group_by: Callable[[Any], Hashable], segments: Segments) -> None:
        """Notes the groups of segments. An exception from `group_by` counts as an exception of the segment's call."""
        for pattern, value in zip(segments.patterns, segments.values, strict=True):
            try:
                group = group_by(value)
                hash(group)
            except BaseException as error:
                group = FailedCall(raised(self._task, error))
            self._groups[pattern] = group

    def _run(self, segments: Segments) -> tuple[Segments, list[Any]]:
        """Starts calls; returns the segments whose calls have ended."""
        done, results = Segments(), list[Any]()
        self._start(segments)
        for ended in self._calls.collect() if self._open else ():
            result = ended.result if ended.error is None else FailedCall(raised(self._task, ended.error))
            called = self._open.pop(ended.ticket)
            self.counters.ran(1, ended.seconds)
            done.add(called)
            results.append(result)
            self._start_next(called)
        for segment, failed in self._uncalled:
            done.add(segment)
            results.append(failed)
        self._uncalled = []
        return done, results

    def _end(self, segments: Segments) -> None:
        """Forgets segments for which the function is not called again."""
        for pattern in segments.patterns if self._groups else ():
            self._groups.pop(pattern, None)

    def _start(self, segments: Segments) -> None:
        """Starts calls, and queues segments behind a call of their group."""
        for index in range(len(segments)):
            segment = segments.choose([index])
            group = self._groups.get(segment.patterns[0])
            if type(group) is FailedCall:
                self._uncalled.append((segment, group))
            elif group is None:
                self._call(segment)
            elif group in self._queues:
                self._queues[group].append(segment)
            elif self._call(segment):
                self._queues[group] = deque()

    def _start_next(self, called: Segments) -> None:
        """Starts the next call of the group of a segment whose call has ended."""
        group = self._groups.get(called.patterns[0])
        if group is None:
            return
        queue = self._queues[group]
        while queue:
            if self._call(queue.popleft()):
                return
        del self._queues[group]

    def _call(self, segment: Segments) -> bool:
        """Starts the call of a segment; returns False if its value cannot be copied: then the segment fails."""
        (arguments,) = arguments_of(self._task, segment.values, self._origins(segment))
        if self._task.retry is not None:
            try:
                arguments = copy_arguments(self._task, arguments)
            except BaseException as error:
                self._uncalled.append((segment, FailedCall(raised(self._task, error))))
                return False
        if self._traces is not None:
            arguments = partial(self._span, segment, self._traces), *arguments
        ticket = next(self._numbers)
        self._open[ticket] = segment
        self._calls.start([Call(ticket, ticket, arguments)])
        return True

    def close(self) -> None:
        """Cancels the calls, and closes the connection to the target."""
        self._calls.close()
        super().close()


class GatheringRunner(TaskRunner):
    """Runs a task on one segment from each of its inputs; these segments all come from the same segment.

    - `common`: the processors that write the channel from which all inputs come; none if a source fills it.
    """

    def __init__(
        self,
        graph: str,
        task: JobTask,
        readers: Readers,
        environment: JobEnvironment,
        common: frozenset[bytes],
        traces: TaskTraces | None = None,
    ) -> None:
        super().__init__(graph, task, readers, environment, traces)
        self._gathering = Gathering(len(task.inputs))
        self._common = common
        self._arrived = set[SegmentId]()
        self.unpaired = 0
        """How many segments were dropped because another branch had none."""

    def _take(self, now: float) -> Segments:
        """Takes the segments that have come from all branches."""
        taken = self._take_due(now, self._limit.limit)
        for branch, inbox in enumerate(self._inboxes):
            arrived = inbox.take(self._limit.limit)
            for segment, pattern, given, path, value in arrived:
                common = (cut_path(path, self._common) or ROOT) if self._common else ROOT
                try:
                    found = self._gathering.add(segment, branch, common, Held(pattern, path, value))
                except GraphError as error:
                    raise GraphError(f"task {self.id!r}: {error}") from None
                if found is None:
                    self._arrived.add(segment)
                else:
                    if self._traces is not None:
                        self._traces.gather(segment, common, [held.path for held in found.held])
                    patterns = Pattern(reduce(xor, (held.pattern for held in found.held)))
                    values = tuple(held.value for held in found.held)
                    taken.add(Segments([segment], [patterns], [given], [common], [values]))
        return taken

    @property
    def waiting(self) -> int:
        """How many segments wait here, including those that wait for other branches."""
        return super().waiting + len(self._gathering)

    def has(self, segment: SegmentId) -> bool:
        """Returns whether an input has a segment here, including those that wait for other branches."""
        return segment in self._gathering or super().has(segment)

    def measures(self) -> dict[str, float]:
        """Returns what is measured here, as `Counters.measures`."""
        return {**super().measures(), "unpaired": self.unpaired}

    def take_arrived(self) -> set[SegmentId]:
        """Returns the inputs with a segment that has begun to wait here since the last call."""
        arrived, self._arrived = self._arrived, set()
        return arrived

    def patterns(self, segment: SegmentId) -> int:
        """Returns the XOR of the patterns of the segments of an input that wait here."""
        return self._gathering.patterns(segment)

    def give_up(self, segment: SegmentId) -> None:
        """Drops the segments of an input that wait for branches without a value."""
        self.unpaired += self._gathering.forget([segment])

    def forget(self, inputs: Collection[SegmentId]) -> None:
        """Forgets inputs that are given back."""
        super().forget(inputs)
        self._gathering.forget(inputs)
