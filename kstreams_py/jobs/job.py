"""The loop of a job in one process: claims inputs, gives each task its turn, and acknowledges what is complete."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from kstreams_py.errors import (
    ClientError,
    InputLost,
    Replaced,
    SinkAway,
    SourceUnavailable,
    Stop,
    Unavailable,
    UserMistake,
)
from kstreams_py.graph.channels import JobTask, TaskKind, common_channel, filled_channels, sort_tasks
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.names import reader_of, show_retry
from kstreams_py.graph.source import InspectedSource, WakingConnection
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.identity import SegmentId, name_in_path, new_ids
from kstreams_py.jobs.inputs import SourceInputs, show_key
from kstreams_py.jobs.runners import GatheringRunner, OverlappingTaskRunner, TaskRunner, Turned
from kstreams_py.jobs.task import Readers
from kstreams_py.jobs.topic_inputs import TopicConnection
from kstreams_py.jobs.traces import TaskTraces, Traces
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import PendingFigures
from kstreams_py.steps.dead_letters import format_error

logger = logging.getLogger(__name__)

ACKER_FACTOR: Final = 3
"""An entry of the acker lives for at least this many times the timeout of an input."""

LEASE_MAX: Final = 3_600.0
"""The longest lease, in seconds, that `_keep` assumes: some sources keep their claims for ever."""

IDLE: Final = (0.0005, 0.05)
"""The shortest and the longest seconds between two looks for inputs; each wait is twice the one before."""


def open_runner(
    graph: str,
    task: JobTask,
    tasks: Sequence[JobTask],
    readers: Readers,
    environment: JobEnvironment,
    traces: Traces | None = None,
) -> TaskRunner:
    """Returns the runner of a task among the tasks of its graph. `traces`: the job's; None without tracing."""
    spans = None
    if traces is not None and environment.open_tracing is not None:
        spans = TaskTraces(task, traces, environment.open_tracing(task))
    if task.kind is TaskKind.GATHER:
        common = common_channel(task, tasks)
        writers = frozenset(name_in_path(each.id) for each in tasks if common in each.outputs)
        return GatheringRunner(graph, task, readers, environment, writers, spans)
    kind = OverlappingTaskRunner if task.overlaps else TaskRunner
    return kind(graph, task, readers, environment, spans)


def open_inputs(
    graph: str,
    channel: Channel,
    tasks: Sequence[JobTask],
    environment: JobEnvironment,
    new_ids: Callable[[int], list[SegmentId]],
) -> SourceInputs:
    """Connects to the source of a channel. Raises SourceUnavailable and SettingsError.

    - `tasks`: the tasks of the graph. `new_ids`: returns a number of new ids.
    """
    name, least = reader_of(graph, channel.name), 4 * sum(task.concurrency for task in tasks)
    letters, connection = environment.open_letters(channel), environment.open_source(channel, name)
    inputs = SourceInputs(
        name,
        connection,
        (least, channel.max_pending or environment.max_pending),
        channel.timeout or environment.timeout,
        new_ids,
        letters,
        environment.look_seconds,
    )
    if isinstance(channel.source, InspectedSource):
        retry, target = show_retry(environment.target, channel.name), environment.target
        inputs.remedy = f"`kstreams sources list {target}` prints refused inputs, `{retry}` lets them be read again"
    return inputs


class Outages:
    """The sources and targets that do not answer now, and are asked again."""

    def __init__(self) -> None:
        self.away: dict[str, str] = {}
        """The reason, by the name of a source or a task."""

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Notes an outage that the block raises, if the source or target may come back. Raises all other errors."""
        try:
            yield
        except (SourceUnavailable, SinkAway) as error:
            if isinstance(error, SourceUnavailable) and not error.may_return:
                raise
            if name not in self.away:
                logger.warning("%s: %s; waiting for it", name, error)
            self.away[name] = str(error)

    def answered(self, name: str) -> None:
        """Notes that a source or target has answered."""
        if self.away.pop(name, None) is not None:
            logger.info("%s: it answers again", name)


class Job:
    """The tasks of one graph in one process."""

    def __init__(self, graph: str, tasks: Sequence[JobTask], environment: JobEnvironment) -> None:
        """Connects to the sources. Raises SourceUnavailable and SettingsError."""
        self._environment = environment
        self._readers = Readers(environment.entropy)
        self._acker = environment.open_acker()
        self._traces = None if environment.open_tracing is None else Traces()
        self.outages = Outages()
        self.is_closed = False
        """Whether what was under way is given back."""
        self.turns = 0
        """The number of turns that each task has had."""
        self.turning: TaskRunner | None = None
        """The task whose turn it is."""
        self._late = 0
        """The number of completions of inputs that were no longer under way at any source."""
        self._dropped_at = environment.clock()
        ordered = sort_tasks(tasks)
        self.tasks = [open_runner(graph, task, ordered, self._readers, environment, self._traces) for task in ordered]
        self._gathers = [each for each in self.tasks if isinstance(each, GatheringRunner)]
        self._inputs: dict[Channel, SourceInputs] = {}
        self._woken, self._is_woken = threading.Event(), False
        """An event that is set when an input has come, and whether any source sets it."""
        try:
            self._connect(graph, tasks)
        except BaseException:
            self.close()
            raise

    def _connect(self, graph: str, tasks: Sequence[JobTask]) -> None:
        environment = self._environment
        for channel in filled_channels(tasks):
            inputs = open_inputs(graph, channel, tasks, environment, partial(new_ids, environment.entropy))
            self._inputs[channel] = inputs
            if isinstance(inputs.connection, WakingConnection):
                inputs.connection.wake_by(self._woken.set)
                self._is_woken = True

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Runs until it is stopped, or until no source has an input left. Gives back the inputs under way."""
        idle, (shortest, longest) = 0.0, IDLE
        ended, failed = threading.Event(), False
        keeper = threading.Thread(target=self._keep, args=(ended,), name="claims", daemon=True)
        keeper.start()
        try:
            while not is_stopped():
                if self.turn():
                    idle = 0.0
                    continue
                if self.is_exhausted:
                    return
                idle = shortest if self._is_busy else min(max(idle * 2, shortest), longest)
                self._wait(idle)
        except Stop as stop:
            logger.info("a function stops the job: %s", stop)
        except Exception as error:
            failed = self.is_death(error)
            raise
        finally:
            ended.set()
            keeper.join()
            self.close(failed=failed)

    def is_death(self, error: Exception) -> bool:
        """Returns whether an error that ends the job counts as a death of the inputs under way.

        If an input caused it, that input must reach the limit on deaths. A mistake in the program, a system that is
        away, or an error at which the graph stops the job is the fault of no input: if it counted, healthy inputs would
        be refused after a long outage.
        """
        is_of_none = isinstance(error, (Stop, UserMistake, Unavailable, Replaced, InputLost, ClientError))
        return not is_of_none and not any(task.asks_to_stop(error) for task in self.tasks)

    def _wait(self, seconds: float) -> None:
        """Waits for `seconds`, or until a source reports an input."""
        if not self._is_woken:
            self._environment.sleep(seconds)
        elif self._woken.wait(seconds):
            self._woken.clear()

    def _keep(self, ended: threading.Event) -> None:
        """Keeps the claims while the job runs, in a thread of its own: a function may take longer than a lease."""
        leases = [each.connection.lease for each in self._inputs.values()]
        while not ended.wait(min([*leases, LEASE_MAX]) / 3):
            self.keep()

    def keep(self) -> None:
        """Keeps the claims. Another thread may call it."""
        for inputs in self._inputs.values():
            try:
                inputs.connection.keep()
            except Exception as error:  # the next attempt may succeed; if this thread ended, the claims would be lost
                logger.info("%s: cannot keep the claims: %s", inputs.name, error)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left to read, and nothing is under way."""
        return all(each.is_exhausted for each in self._inputs.values())

    @property
    def _is_busy(self) -> bool:
        return any(task.is_busy for task in self.tasks)

    def turn(self) -> bool:
        """Reads inputs, and gives each task a turn; returns whether there was anything to do.

        1. Claim inputs, and open their entries before a task may acknowledge them.
        2. Run each task after those that write its inputs, so that an input can go all the way in one turn.
        3. Give up segments at a gather whose other branches will not come.
        4. Acknowledge the complete inputs: everything made from them was stored in step 2.
        """
        now, worked = self._environment.clock(), False
        self.turns += 1
        for channel, inputs in self._inputs.items():
            with self.outages.of(inputs.name):
                others = self._others(inputs)
                segments = inputs.read(
                    now,
                    sum(task.retrying for task in self.tasks),
                    others_wait=any(map(self._waits, others)),
                    is_alone=not any(each.pending for each in others),
                )
                if inputs.asked_at == now:
                    self.outages.answered(inputs.name)
                if segments:
                    worked = True
                    if self._traces is not None:
                        self._traces.begin(inputs.records(channel.name, segments.ids))
                    patterns = self._readers.send(channel, segments)
                    self._note_uncopied()
                    self._complete(self._acker.open(segments.ids, patterns))
        touched = self._run_tasks()
        worked |= bool(touched)
        self.turning = None
        for gather in self._gathers:
            touched |= gather.take_arrived()
        self._settle(touched)
        for channel, inputs in self._inputs.items():
            with self.outages.of(inputs.name):
                if inputs.settle(self._environment.clock()):
                    worked = True  # inputs that cannot be read reach no task
                    for task in self.tasks:
                        task.counters.commits += 1
            self._count_refused(channel, inputs)
            with self.outages.of(inputs.name):
                self._expire(inputs, now)
        self._drop(now)
        return worked

    def _others(self, inputs: SourceInputs) -> list[SourceInputs]:
        """Returns the inputs of the other sources: suspects of one source are alone in the whole process."""
        return [each for each in self._inputs.values() if each is not inputs]

    def _waits(self, inputs: SourceInputs) -> bool:
        """Returns whether suspects of a source keep the others waiting. Not while the source is away."""
        return inputs.keeps_others_waiting and inputs.name not in self.outages.away

    def _run_tasks(self) -> set[SegmentId]:
        """Gives each task a turn; returns the inputs that made progress. Raises the error that stops the job."""
        touched = set[SegmentId]()
        for task in self.tasks:
            self.turning, turned = task, Turned()
            with self.outages.of(task.id):
                if (turned := task.turn(self._environment.clock())).ids:
                    # only gathers need all of them
                    touched.update(turned.ids if self._gathers else turned.ids[:1])
                    self.outages.answered(task.id)
                    self._note_failures(task.id, turned.failed)
                    self._note_uncopied()
                    self._complete(self._acker.ack(turned.ids, turned.acks))
            task.log_attempts(self._name_input)
            if turned.stop is not None:  # `close` acknowledges the complete inputs
                raise turned.stop
        return touched

    def _name_input(self, segment: SegmentId) -> str:
        """Returns the key of an input and its source as text."""
        found = ((inputs, inputs.pending.claim(segment)) for inputs in self._inputs.values())
        names = (
            f"input {show_key(inputs.connection, claim)} of {inputs.name}"
            for inputs, claim in found
            if claim is not None
        )
        return next(names, "an input that has expired")

    def _note_uncopied(self) -> None:
        uncopied, self._readers.uncopied = self._readers.uncopied, []
        for segment, task, error in uncopied:
            self._note_failures(task, [(segment, error)])

    def _note_failures(self, task: str, failed: Iterable[tuple[SegmentId, BaseException]]) -> None:
        for segment, error in failed:
            trace = () if self._traces is None else self._traces.failure(segment)
            are_known = [inputs.fail(segment, task, error, trace) for inputs in self._inputs.values()]
            if not any(are_known):
                logger.warning(
                    "%s: %s: its input has expired, and is read again", task, format_error(error),
                    extra=repeated(f"late failures of task {task}"),
                )  # fmt: skip

    def _count_refused(self, channel: Channel, inputs: SourceInputs) -> None:
        """Counts refused inputs at their source; refused records of a topic as dead letters, or as dropped."""
        if not inputs.refused_by:
            return
        refused, inputs.refused_by = inputs.refused_by, Counter()
        if channel.topic is None:
            inputs.counts.refused += refused.total()
            return
        readers = [task for task in self.tasks if channel in task.inputs]
        for name, count in refused.items():
            # a record that could not be decoded reached no task
            counters = next((task for task in self.tasks if task.id == name), readers[0]).counters
            if channel.errors is None:
                counters.dropped += count
            else:
                counters.dead_letters += count

    def _settle(self, inputs: Iterable[SegmentId]) -> None:
        """Gives up the segments of inputs that have none under way except at gathers."""
        for segment in inputs:
            held = 0
            for gather in self._gathers:
                held ^= gather.patterns(segment)
            if held and held == self._acker.left(segment):
                for gather in self._gathers:
                    gather.give_up(segment)
                self._complete(self._acker.ack([segment], [held]))

    def _complete(self, segments: Sequence[SegmentId]) -> None:
        if not segments:
            return
        if self._traces is not None:
            self._traces.forget(segments)
        if len(self._inputs) == 1:
            (inputs,) = self._inputs.values()
            inputs.complete(segments)
            return
        self._late += sum(not any(segment in each.pending for each in self._inputs.values()) for segment in segments)
        for inputs in self._inputs.values():
            inputs.complete([segment for segment in segments if segment in inputs.pending])

    def _expire(self, inputs: SourceInputs, now: float) -> None:
        """Gives back overdue inputs that are in no task; or all inputs, if they only wait and keep others waiting.

        The job then forgets them, as if it had never read them.
        """
        others = self._others(inputs)
        others_wait, is_only = any(map(self._waits, others)), not others
        expired = inputs.expire(now, self._under_way)
        if lost := expired or inputs.give_up_paused(now, self._paused, others_wait=others_wait, is_only=is_only):
            self._acker.forget(lost)
            if self._traces is not None:
                self._traces.forget(lost)
            for task in self.tasks:
                task.forget(lost)
        inputs.return_expired()

    def _paused(self) -> Collection[SegmentId]:
        """Returns the inputs that only wait until a function is called again."""
        paused = [task.paused() for task in self.tasks]
        active = (_under_way_in(task) - waiting for task, waiting in zip(self.tasks, paused, strict=True))
        return set[SegmentId]().union(*paused).difference(*active)

    def _drop(self, now: float) -> None:
        if now > self._dropped_at + self._environment.timeout * ACKER_FACTOR:
            self._acker.drop(lambda segment: any(segment in each.pending for each in self._inputs.values()))
            self._dropped_at = now

    def _under_way(self) -> dict[SegmentId, str]:
        """Returns the inputs that have a segment in a task, each with the id of one such task."""
        return {segment: task.id for task in self.tasks for segment in _under_way_in(task)}

    # Other threads may call these at any time.

    def show_pending(self) -> dict[str, PendingFigures]:
        """Returns the figures of the inputs under way, by the name of their source."""
        now = self._environment.clock()
        return {
            channel.name: inputs.show_pending(
                now,
                self._tasks_with,
                self.outages.away.get(inputs.name, ""),
                others_wait=any(each.connection.waits_alone for each in self._others(inputs)),
            )
            for channel, inputs in self._inputs.items()
        }

    def topics_of(self, task: TaskRunner) -> dict[Channel, TopicConnection]:
        """Returns the connections to the topics that a task reads."""
        read = {channel: self._inputs[channel].connection for channel in task.inputs if channel in self._inputs}
        return {channel: each for channel, each in read.items() if isinstance(each, TopicConnection)}

    def sources_of(self, task: TaskRunner) -> list[str]:
        """Returns the names, in `outages`, of the sources that a task reads."""
        return [self._inputs[channel].name for channel in task.inputs if channel in self._inputs]

    def _tasks_with(self, segment: SegmentId) -> tuple[str, ...]:
        return tuple(task.id for task in self.tasks if task.has(segment))

    def measures(self) -> dict[str, float]:
        """Returns the counts of inputs by source, and of acknowledgements, in the form of `Counters.measures`."""
        found: dict[str, float] = {}
        for channel, inputs in self._inputs.items():
            found |= inputs.counts.measures(channel.name)
        late = self._late + sum(each.pending.late for each in self._inputs.values())
        return found | {"acks:completed": late, "acks:dropped": self._acker.dropped}

    def close(self, *, failed: bool = False) -> None:
        """Gives back the inputs under way, and closes all connections. `failed`: this counts as a death."""
        self.is_closed = True
        with ExitStack() as closing:  # one that raises must not leave the others open
            for task in self.tasks:
                closing.callback(task.close)
            for channel, inputs in self._inputs.items():
                closing.callback(self._count_refused, channel, inputs)
                closing.callback(inputs.close, failed=failed)


def _under_way_in(task: TaskRunner) -> set[SegmentId]:
    """Returns the inputs that have a segment in a task, between two turns."""
    return {segment for part in task.parts() for segment in part.ids}
