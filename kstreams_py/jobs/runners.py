"""Runs a task: takes the segments of its inboxes, calls its function, sends or stores the results, and acknowledges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import reduce
from heapq import heappop, heappush
from itertools import count
from operator import xor
from typing import Any, Final, NamedTuple

from kstreams_py.errors import DecodeError, GraphError, KStreamsError, RecordRefused, Stop, UserMistake
from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.retry import Then
from kstreams_py.jobs.adaptive_limit import AdaptiveLimit
from kstreams_py.jobs.copies import copy_value, copy_values
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.gathering import Gathering, Held
from kstreams_py.jobs.identity import ROOT, Origin, Pattern, SegmentId, cut_path, extend_all, name_in_path, origins_of
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.task import FailedCall, Function, Made, Readers, Sending, Storing, arguments_of, exited
from kstreams_py.metrics import Counters
from kstreams_py.steps.calls import Call
from kstreams_py.steps.dead_letters import format_error

logger = logging.getLogger(__name__)

CALLED_MAX: Final = 10_000
"""The maximum number of segments of a task that are run before the next task has its turn."""

CALLED_FIRST: Final = 100
"""Those of the first turn, before the speed of the function is known."""

WAITING_MAX: Final = 100_000
"""A task that writes to channels where more segments wait has no turn: one input may become many segments."""

TURN_SECONDS: Final = 0.1
"""Seconds that a turn of a task may take: a stop waits for it, and rows are stored in one write."""


class Turned(NamedTuple):
    """What a turn of a task did.

    - `ids`, `acks`: for each copy that is done, its input, and the XOR of its pattern and of those made of it.
    - `failed`: the inputs with a segment that failed, with the error.
    """

    ids: Sequence[SegmentId] = ()
    acks: Sequence[int] = ()
    failed: Sequence[tuple[SegmentId, BaseException]] = ()


class TaskRunner:
    """A task with its inboxes: one for each input."""

    def __init__(self, graph: str, task: JobTask, readers: Readers, environment: JobEnvironment) -> None:
        self.id, self.inputs = task.id, task.inputs
        self._task, self._environment = task, environment
        self._readers = readers
        self._inboxes = [readers.open_inbox(channel) for channel in task.inputs]
        self._function = Function(task)
        self._name = name_in_path(task.id)
        self._sending = Sending(task, readers, environment.open_outputs(task)) if task.written else None
        self._storing = Storing(task, environment.open_sink, f"{graph}.{task.id}") if task.target is not None else None
        self._unstored: tuple[Segments, Sequence[Any]] | None = None
        """The results whose rows the target could not store yet."""
        self._attempts: dict[Pattern, int] = {}
        """How often a segment failed that is run again, by its pattern."""
        self._again: list[tuple[float, int, Segments]] = []
        """A heap of the segments that are run again, by when that is."""
        self._rest = Segments()
        """The segments that were taken, and that the turn had no time for."""
        self._running: Sequence[SegmentId] = ()
        """The inputs of the segments that were taken in this turn."""
        self._numbers = count()
        self._limit = AdaptiveLimit(TURN_SECONDS, CALLED_FIRST, CALLED_MAX)
        self.counters = Counters()
        self.failed = 0
        """How many segments have failed: their inputs are refused."""
        self.newest_failure = ""
        """The newest segment that failed, as text."""

    @property
    def waiting(self) -> int:
        """How many segments wait here."""
        return sum(map(len, self._inboxes)) + len(self._rest) + len(self._again)

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way, which may end at any time."""
        return False

    @property
    def is_retrying(self) -> bool:
        """Whether a segment waits for another attempt."""
        return bool(self._again)

    @property
    def ended(self) -> int:
        """How many calls of the function have ended in the job's thread."""
        return self._function.ended

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """The start of the oldest call beside the job's thread, and a function that finds its frame: see Calls."""
        return None

    def _parts(self) -> list[Segments]:
        """Returns the segments that are here between two turns. Any thread may ask for them."""
        unstored = self._unstored
        parts = [*self._inboxes, self._rest, *(segments for _, _, segments in self._again)]
        return parts if unstored is None else [*parts, unstored[0]]

    def under_way(self) -> set[SegmentId]:
        """Returns the inputs that have a segment here, between two turns."""
        return {segment for part in self._parts() for segment in part.ids}

    def has(self, segment: SegmentId) -> bool:
        """Returns whether an input has a segment here, also during a turn. Any thread may ask for it."""
        return segment in self._running or any(segment in part.ids for part in self._parts())

    def measures(self) -> dict[str, float]:
        """Returns what is measured here, as `Counters.measures`."""
        return {**self.counters.measures(), "failed": self.failed}

    def turn(self, now: float) -> Turned:
        """Runs the next segments. `now`: by the clock of the environment.

        Raises SinkAway: the next turn stores the same results again. Raises the error of a segment that stops the job.
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
        for _, error in made.failed:
            self._check(error)
            self.newest_failure = f"{type(error).__name__}: {format_error(error)}"
        self._limit.took(len(segments), self._environment.clock() - now)
        self.counters.records_in += len(segments)
        self.counters.records_out += made.sent
        self.failed += len(made.failed)
        return Turned(segments.ids, made.patterns, [(segments.ids[index], error) for index, error in made.failed])

    def _end(self, segments: Segments) -> None:
        """Forgets what is known of segments that are not called again."""

    def _count_time(self, steps: int, seconds: float) -> None:
        """Counts the time in which the function was called for some segments."""
        self.counters.ran(steps, seconds)

    def _take_due(self, now: float) -> Segments:
        """Takes the segments that are run again now, and those that the turn before had no time for."""
        taken, self._rest = self._rest, Segments()
        while self._again and self._again[0][0] <= now and len(taken) < self._limit.limit:
            taken.add(heappop(self._again)[2])
        return taken

    def _take(self, now: float) -> Segments:
        """Takes the segments to run now: those that are due, then those of the fullest inbox, and of the others."""
        taken = self._take_due(now)
        for inbox in sorted(self._inboxes, key=len, reverse=True):
            taken.add(inbox.take(max(0, self._limit.limit - len(taken))))
        return taken

    def _run(self, segments: Segments) -> tuple[Segments, Sequence[Any]]:
        """Runs segments while the turn has time for them; returns those that are done, and their results."""
        if len(segments) <= 1:
            return segments, self._function.results(self._values(segments), self._origins(segments))
        clock, slice_size, done, results = self._environment.clock, 1, Segments(), list[Any]()
        until = clock() + TURN_SECONDS
        while segments and (not done or clock() < until):
            part = segments.take(slice_size)
            results += self._function.results(self._values(part), self._origins(part))
            done.add(part)
            slice_size *= 4
        self._rest = segments
        return done, results

    def _values(self, segments: Segments) -> Sequence[Any]:
        """Returns the values of segments for a call; copies if another may follow, which gets them unchanged."""
        return segments.values if self._task.retry is None else copy_values(segments.values)

    def _origins(self, segments: Segments) -> Iterator[Origin]:
        """Returns the origins of the steps of segments, which their functions get."""
        return origins_of(segments.given, extend_all(segments.paths, self._name))

    def _repeat(self, segments: Segments, results: Sequence[Any], now: float) -> tuple[Segments, Sequence[Any]]:
        """Keeps the segments that are to be run again; returns the others with their results."""
        retry = self._task.retry
        assert retry is not None
        kept = list[int]()
        for index, result in enumerate(results):
            pattern = segments.patterns[index]
            if type(result) is not FailedCall or not self._covers(result.error):
                self._attempts.pop(pattern, None)
                kept.append(index)
                continue
            attempts = self._attempts[pattern] = self._attempts.get(pattern, 0) + 1
            if attempts < retry.attempts or retry.then is Then.PAUSE:
                self.counters.retried()
                self.newest_failure = f"{type(result.error).__name__}: {format_error(result.error)}"
                if attempts >= retry.attempts:
                    logger.warning(
                        "%s: attempt %d failed: %s; it is tried again", self.id, attempts, self.newest_failure
                    )
                due = now + retry.wait(attempts, self._environment.chance())
                heappush(self._again, (due, next(self._numbers), segments.choose([index])))
                continue
            del self._attempts[pattern]
            if retry.then is Then.STOP:
                raise result.error
            kept.append(index)
        return (segments, results) if len(kept) == len(results) else (segments.choose(kept), [results[i] for i in kept])

    def _covers(self, error: BaseException) -> bool:
        """Returns whether another attempt may succeed, as steps.failures.Retries does."""
        retry = self._task.retry
        never = (*self._task.stop_on, Stop, MemoryError, UserMistake, DecodeError)
        return retry is not None and isinstance(error, retry.classes) and not isinstance(error, never)

    def _check(self, error: BaseException) -> None:
        """Raises an error that stops the job: it is a mistake of the program, or was raised for that."""
        is_of_program = isinstance(error, KStreamsError) and not isinstance(error, DecodeError | RecordRefused)
        if is_of_program or isinstance(error, (Stop, MemoryError, *self._task.stop_on)):
            raise error

    def forget(self, inputs: Collection[SegmentId]) -> None:
        """Forgets inputs that have expired."""

    def close(self) -> None:
        """Closes the connections to target and topics."""
        if self._sending is not None:
            self._sending.close()
        if self._storing is not None:
            self._storing.close()


class OverlappingTaskRunner(TaskRunner):
    """Runs a task whose calls are under way beside the other tasks."""

    def __init__(self, graph: str, task: JobTask, readers: Readers, environment: JobEnvironment) -> None:
        super().__init__(graph, task, readers, environment)
        self._calls = environment.open_calls(task, lambda _, returned: copy_value(returned))
        self._open: dict[int, Segments] = {}
        """The segment of each call under way, by ticket."""
        self._groups: dict[Pattern, Hashable | FailedCall] = {}
        """By pattern, the group of a segment whose calls come one after another; or what its `group_by` raised."""

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way, which may end at any time."""
        return bool(self._open)

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """The start of the oldest call under way, and a function that finds its frame: see Calls."""
        return self._calls.oldest

    def _parts(self) -> list[Segments]:
        """Returns the segments that are here, also those whose calls are under way."""
        return [*super()._parts(), *self._open.copy().values()]

    def _count_time(self, steps: int, seconds: float) -> None:
        """Does nothing: each call has its own time."""

    def _take(self, now: float) -> Segments:
        """Takes segments until as many wait for their calls as calls may run concurrently."""
        free, taken = 2 * self._task.concurrency - len(self._open), Segments()
        while self._again and self._again[0][0] <= now and len(taken) < free:
            taken.add(heappop(self._again)[2])
        for channel, inbox in zip(self._task.inputs, self._inboxes, strict=True):
            part = inbox.take(max(0, free - len(taken)))
            if channel.group_by is not None:
                self._group(channel.group_by, part)
            taken.add(part)
        return taken

    def _group(self, group_by: Callable[[Any], Hashable], segments: Segments) -> None:
        """Notes the groups of segments. What `group_by` raises is what the call of its segment raises."""
        for pattern, value in zip(segments.patterns, segments.values, strict=True):
            try:
                group = group_by(value)
                hash(group)
            except Exception as error:
                group = FailedCall(error)
            self._groups[pattern] = group

    def _run(self, segments: Segments) -> tuple[Segments, Sequence[Any]]:
        """Starts calls; returns the segments whose calls have ended."""
        done, results = self._start(segments)
        while ended := self._calls.collect() if self._open else ():
            dropped = Segments()
            for each in ended:
                if isinstance(each.error, SystemExit | KeyboardInterrupt):
                    raise exited(self._task, each.error) from each.error
                called = self._open.pop(each.ticket)
                if not each.has_run:  # another one of its group has raised
                    dropped.add(called)
                    continue
                done.add(called)
                self.counters.ran(1, each.seconds)
                results.append(each.result if each.error is None else FailedCall(each.error))
            if not dropped:
                break
            self._start(dropped)
        return done, results

    def _end(self, segments: Segments) -> None:
        """Forgets what is known of segments that are not called again."""
        for pattern in segments.patterns if self._groups else ():
            self._groups.pop(pattern, None)

    def _start(self, segments: Segments) -> tuple[Segments, list[Any]]:
        """Starts calls; returns the segments that have no group, and their results."""
        failed, results, calls = Segments(), list[Any](), list[Call]()
        arguments = arguments_of(self._task, self._values(segments), self._origins(segments))
        for index, each in enumerate(arguments):
            ticket, segment = next(self._numbers), segments.choose([index])
            group = self._groups.get(segment.patterns[0])
            if type(group) is FailedCall:
                failed.add(segment)
                results.append(group)
                continue
            self._open[ticket] = segment
            calls.append(Call(ticket, ("alone", ticket) if group is None else ("group", group), each))
        if calls:
            self._calls.start(calls)
        return failed, results

    def close(self) -> None:
        """Cancels the calls, and closes the connection to the target."""
        self._calls.close()
        super().close()


class GatheringRunner(TaskRunner):
    """Runs a task with a segment of each of its inputs, which come from the same segment.

    - `common`: the processors that write the channel that the inputs have in common; none if a source does.
    """

    def __init__(
        self, graph: str, task: JobTask, readers: Readers, environment: JobEnvironment, common: frozenset[bytes]
    ) -> None:
        super().__init__(graph, task, readers, environment)
        self._gathering = Gathering(len(task.inputs))
        self._common = common
        self._arrived = set[SegmentId]()
        self.unpaired = 0
        """How many segments were dropped because another branch had none."""

    def _take(self, now: float) -> Segments:
        """Takes the segments whose branches have all come."""
        taken = self._take_due(now)
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
                    patterns = Pattern(reduce(xor, (held.pattern for held in found.held)))
                    values = tuple(held.value for held in found.held)
                    taken.add(Segments([segment], [patterns], [given], [common], [values]))
        return taken

    @property
    def waiting(self) -> int:
        """How many segments wait here, also for those of other branches."""
        return super().waiting + len(self._gathering)

    def has(self, segment: SegmentId) -> bool:
        """Returns whether an input has a segment here, also one that waits for those of other branches."""
        return segment in self._gathering or super().has(segment)

    def measures(self) -> dict[str, float]:
        """Returns what is measured here, as `Counters.measures`."""
        return {**super().measures(), "unpaired": self.unpaired}

    def take_arrived(self) -> set[SegmentId]:
        """Returns the inputs with a segment that waits here since the last call."""
        arrived, self._arrived = self._arrived, set()
        return arrived

    def patterns(self, segment: SegmentId) -> int:
        """Returns the XOR of the patterns of the segments of an input that wait here."""
        return self._gathering.patterns(segment)

    def give_up(self, segment: SegmentId) -> None:
        """Drops the segments of an input that wait for branches without a value."""
        self.unpaired += self._gathering.forget([segment])

    def forget(self, inputs: Collection[SegmentId]) -> None:
        """Forgets inputs that have expired."""
        self._gathering.forget(inputs)
