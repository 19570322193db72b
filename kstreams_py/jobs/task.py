"""One task of a job: calls its function with segments, sends or stores the results, and returns acknowledgements."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import xor
from typing import Any, Final, NamedTuple

from kstreams_py.errors import GraphError, RowRefused, SinkAway, SinkUnavailable
from kstreams_py.graph.channels import JobTask, TaskKind
from kstreams_py.graph.declarations import Channel, Topic
from kstreams_py.graph.functions import show_function
from kstreams_py.graph.sink import Row, Sink, SinkConnection
from kstreams_py.jobs.copies import IMMUTABLE, copy_value, copy_values
from kstreams_py.jobs.identity import (
    Entropy,
    Given,
    Origin,
    Path,
    Pattern,
    SegmentId,
    extend,
    extend_all,
    name_in_path,
    new_patterns,
    origins_of,
)
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.topic_outputs import TopicOutputs
from kstreams_py.jobs.traces import TaskTraces
from kstreams_py.kafka.contracts import Output
from kstreams_py.records import KeptRecord, Out, Step
from kstreams_py.steps.dead_letters import format_error
from kstreams_py.steps.failures import ProcessKilled, exit_error
from kstreams_py.steps.rows import Rows, row_hash


class FailedCall(NamedTuple):
    """Stands for the results of a call that raised an exception."""

    error: BaseException


NOT_PLAIN: Final = frozenset({type(None), FailedCall, Out})
"""The types of results that are not values of a channel."""


class Uncopied(NamedTuple):
    """A segment that could not be copied for a task; it fails there."""

    id: SegmentId
    task: str
    error: BaseException


class Readers:
    """The readers of each channel: the inbox of each task that reads it gets a copy of its segments.

    Attributes:

    - `uncopied`: the segments that could not be copied. They are not under way: `send` counts no pattern for them.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._inboxes: dict[Channel, list[tuple[str, Segments]]] = {}
        """The tasks that read each channel, each with its inbox."""
        self.uncopied: list[Uncopied] = []

    def open_inbox(self, channel: Channel, task: str) -> Segments:
        """Adds a task, named by its id, to the readers of a channel; returns its inbox."""
        inbox = Segments()
        self._inboxes.setdefault(channel, []).append((task, inbox))
        return inbox

    def waiting(self, channels: Iterable[Channel]) -> int:
        """Returns how many segments wait in the fullest inbox among the readers of these channels."""
        return max(len(inbox) for channel in channels for _, inbox in self._inboxes.get(channel, ()))

    def send(self, channel: Channel, made: Segments) -> list[int]:
        """Sends a copy of segments to each reader of a channel; returns the XOR of the copies' patterns, by segment.

        Each copy has its own pattern: if copies shared one, the first finished copy would look like all of them.

        - `made`: segments without patterns.
        """
        count, sums = len(made.ids), list[int]()
        inboxes = self._inboxes.get(channel, ())
        for number, (task, inbox) in enumerate(inboxes, 1):
            made.patterns = patterns = new_patterns(self._entropy, count)
            inbox.add(made if number == len(inboxes) else self._copy(made, task))
            sums = [*map(xor, sums, patterns)] if sums else [*patterns]
        return sums or [0] * count

    def _copy(self, made: Segments, task: str) -> Segments:
        """Returns a copy of segments for a task. Leaves out segments that cannot be copied; they get no pattern."""
        copied, errors = copy_values(made.values)
        copy = made
        if errors:
            copy = made.choose(index for index in range(len(made)) if index not in errors)
            self.uncopied += [Uncopied(made.ids[index], task, error) for index, error in errors.items()]
            for index in errors:
                made.patterns[index] = Pattern(0)
        return Segments(copy.ids, copy.patterns, copy.given, copy.paths, copied)


class Function:
    """A plain function of a task, called with one segment after another; for a gather, with a tuple of values."""

    def __init__(self, task: JobTask, clock: Callable[[], float]) -> None:
        self._task, self._clock = task, clock
        function = task.function if task.retry is None else keep_values(task)
        self._call, self._kept = function, IMMUTABLE
        """The function, and the types of results that need no copy."""
        if task.generator:
            self._call = lambda *arguments: [*map(copy_value, function(*arguments))]
            self._kept = frozenset({list})
        self._ended = 0
        self._results: list[Any] = []
        """The results of the calls under way."""

    @property
    def ended(self) -> int:
        """How many calls have ended. Any thread may read this property while a call is under way."""
        return self._ended + len(self._results)

    def results(self, values: Iterable[Any], origins: Iterator[Origin], until: float = float("inf")) -> list[Any]:
        """Returns the result, or FailedCall, for each value, or for the first values if there is no time for all.

        - `origins`: the origin of each value's step.
        - `until`: the clock time after which no call is begun, except for the first one.
        """
        results = self._results = list[Any]()
        call, kept, clock = self._call, self._kept, self._clock
        for arguments in arguments_of(self._task, values, origins):
            if results and clock() >= until:  # before each call: a fast function may become slow
                break
            try:
                result = call(*arguments)
                # copied immediately: a function may later change what it has returned
                results.append(result if type(result) in kept else copy_value(result))
            except StopIteration:
                results.append(FailedCall(RuntimeError("the function raised StopIteration")))
            except BaseException as error:
                results.append(FailedCall(raised(self._task, error)))
        self._ended, self._results = self._ended + len(results), []
        return results


def arguments_of(task: JobTask, values: Iterable[Any], origins: Iterator[Origin]) -> Iterator[tuple[Any, ...]]:
    """Returns the arguments of each call."""
    several = values if task.kind is TaskKind.GATHER else zip(values)
    if not task.wants_step:
        return iter(several)
    return ((*each, step_of(origin)) for each, origin in zip(several, origins, strict=True))


def copy_arguments(task: JobTask, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the arguments of a call with copies of its values."""
    count = len(task.inputs) if task.kind is TaskKind.GATHER else 1
    return (*map(copy_value, arguments[:count]), *arguments[count:])


def keep_values(task: JobTask) -> Callable[..., Any]:
    """Returns a task's function that is called with copies: another attempt needs the unchanged values."""
    function = task.function
    return lambda *arguments: function(*copy_arguments(task, arguments))


def raised(task: JobTask, error: BaseException) -> BaseException:
    """Returns the error of a segment for any exception of the user's code, which must not end the worker.

    Raises FunctionExited for an exception that would end the process; see exit_error().
    """
    if isinstance(error, ProcessKilled):
        raise error
    if isinstance(error, SystemExit | KeyboardInterrupt):
        text = f"{task.id}: {show_function(task.function)} ended by {type(error).__name__}: {format_error(error)}"
        raise exit_error(text, error, "to refuse the input") from error
    return error


def step_of(origin: Origin) -> Step:
    """Returns the `step` for a function. A segment has neither key, headers nor timestamp."""
    record = KeptRecord(("", 0, 0), (0, -1), (None, None), ())
    return Step((record,), origin)


class Made(NamedTuple):
    """The outcome of sending or storing the results for segments.

    - `sent`: how many segments were sent, or rows stored.
    - `patterns`: for each segment, the XOR of its pattern and the patterns made from it.
    - `failed`: the index of each segment that failed, with the error.
    """

    sent: int
    patterns: Sequence[int]
    failed: Sequence[tuple[int, BaseException]]


class Sending:
    """Sends the results of a task to its channels, after the results for its topics have been written."""

    def __init__(
        self, task: JobTask, readers: Readers, topics: TopicOutputs | None, traces: TaskTraces | None = None
    ) -> None:
        """Makes no request.

        - `topics`: writes to the topics of the task; None if it has none.
        - `traces`: gives records the contexts of their steps; None for no tracing.
        """
        self._task, self._readers, self._topics, self._traces = task, readers, topics, traces
        self._name = name_in_path(task.id)
        self._ends = {each.name: each for each in task.written}
        self._addressed: Addressed | None = None
        """The destinations of results whose records are not all written yet; None if there are none."""

    def send(self, segments: Segments, results: list[Any]) -> Made:
        """Sends the results for segments.

        Raises SinkAway while a topic cannot be written: the next call must then have the same results.
        """
        is_one = len(self._task.outputs) == 1 and self._topics is None and not self._task.generator
        if is_one and NOT_PLAIN.isdisjoint(map(type, results)):
            return self._send_each(segments, results)
        if self._addressed is None:
            self._addressed = self._address(segments, results)
        addressed = self._addressed
        if addressed.records:
            assert self._topics is not None
            refused = self._topics.writer.write([output for _, output in addressed.records])
            addressed.failed.extend((addressed.records[number][0], error) for number, error in refused.items())
        self._addressed = None
        patterns: list[int] = [*segments.patterns]
        for channel, (indexes, paths, values) in addressed.values.items():
            ids, given = [segments.ids[i] for i in indexes], [segments.given[i] for i in indexes]
            sums = self._readers.send(channel, Segments(ids, [], given, paths, values))
            for index, pattern in zip(indexes, sums, strict=True):
                patterns[index] ^= pattern
        sent = sum(len(indexes) for indexes, _, _ in addressed.values.values())
        return Made(sent + len(addressed.records), patterns, addressed.failed)

    def _send_each(self, segments: Segments, results: list[Any]) -> Made:
        """Sends one result for each segment, to one channel."""
        paths = extend_all(segments.paths, self._name)
        made = Segments(segments.ids, [], segments.given, paths, results)
        sums = self._readers.send(self._task.outputs[0], made)
        return Made(len(made), [*map(xor, segments.patterns, sums)], ())

    def _address(self, segments: Segments, results: Sequence[Any]) -> Addressed:
        """Returns where each result goes."""
        addressed = Addressed({}, [], [])
        for index, result in enumerate(results):
            if type(result) is FailedCall:
                addressed.failed.append((index, result.error))
                continue
            try:
                ends = self._ends_of(result)
                paths = [extend(segments.paths[index], self._name, number) for number in range(len(ends))]
                records = self._records(segments.given[index], ends, paths)
                # one value may go to several channels
                values = [
                    copy_value(value) if at and isinstance(end, Channel) else value
                    for at, (end, value) in enumerate(ends)
                ]
            except BaseException as error:  # a serde may raise anything
                addressed.failed.append((index, raised(self._task, error)))
                continue
            if self._traces is not None:
                records = self._traces.put(records, segments.ids[index], segments.paths[index])
            addressed.records.extend((index, each) for each in records)
            for (end, _), path, value in zip(ends, paths, values, strict=True):
                if isinstance(end, Channel):
                    indexes, at, sent = addressed.values.setdefault(end, ([], [], []))
                    indexes.append(index)
                    at.append(path)
                    sent.append(value)
        return addressed

    def _records(self, given: Given, ends: Sequence[tuple[Channel | Topic, Any]], paths: list[Path]) -> list[Output]:
        """Returns the records of the results of one step."""
        if self._topics is None:
            return []
        origins = origins_of([given] * len(paths), paths)
        return [
            self._topics.make(end, value, origin)
            for (end, value), origin in zip(ends, origins, strict=True)
            if isinstance(end, Topic)
        ]

    def _ends_of(self, result: Any) -> list[tuple[Channel | Topic, Any]]:
        """Returns the channel or topic, and the value, of each result of a step.

        Raises GraphError for a result that fits no channel or topic.
        """
        task, found = self._task, list[tuple[Channel | Topic, Any]]()
        for each in result if task.generator else (result,):
            if each is None:
                continue
            if len(task.written) == 1:
                found.append((task.written[0], _fitting(task, task.written[0], each)))
                continue
            if not isinstance(each, Mapping):
                raise GraphError(
                    f"task {task.id!r} has several outputs and returned a {type(each).__name__}: return a dict of "
                    f"{self._kinds} to value, for {', '.join(self._ends)}"
                )
            for name, value in each.items():
                if (end := self._ends.get(str(name))) is None:
                    raise GraphError(
                        f"task {task.id!r} returned a value for {str(name)!r}: its to= has {', '.join(self._ends)}: "
                        f"name one of these, or add the {self._kinds} there"
                    )
                if value is not None:
                    found.append((end, _fitting(task, end, value)))
        return found

    @property
    def _kinds(self) -> str:
        return "channel" if not self._task.topics else "topic" if not self._task.outputs else "channel or topic"

    def close(self) -> None:
        """Ends the client that writes to topics."""
        if self._topics is not None:
            self._topics.writer.close()


class Addressed(NamedTuple):
    """The destinations of the results of a turn.

    - `values`: for each channel, the indexes of the segments, the paths and the values.
    - `records`: for each record of a topic, the index of its segment.
    - `failed`: the index of each segment that failed, with the error.
    """

    values: dict[Channel, tuple[list[int], list[Path], list[Any]]]
    records: list[tuple[int, Output]]
    failed: list[tuple[int, BaseException]]


def _fitting(task: JobTask, end: Channel | Topic, value: Any) -> Any:
    if type(value) is Out and isinstance(end, Channel):
        raise GraphError(
            f"task {task.id!r} returned an Out: a channel has no keys, headers or timestamps: return {value.value!r}"
        )
    return value


class Storing:
    """Stores the rows of a task in its target, each row once, by the origin of its segment."""

    def __init__(self, task: JobTask, open_sink: Callable[[Sink, str], SinkConnection], consumer: str) -> None:
        assert task.target is not None
        self._task, self._sink, self._consumer = task, task.target, consumer
        self._open = open_sink
        self._rows = Rows(task.id, task.target.columns)
        self._name = name_in_path(task.id)
        self._generator = task.generator
        self._connection: SinkConnection | None = None

    def store(self, segments: Segments, results: Sequence[Any]) -> Made:
        """Stores the rows of the results for segments, in one write.

        Raises SinkAway while the target is away, and SinkUnavailable. The target may still have stored the rows.
        """
        failed = list[tuple[int, BaseException]]()
        if not self._generator and self._rows.are_rows(results):
            rows = [*map(Row, self._origins(segments), results)]
            owners: Sequence[int] = range(len(rows))
        else:
            rows, owners = self._make(segments, results, failed)
        stored = self._write_all(rows, owners, failed)
        return Made(stored, segments.patterns, failed)

    def _write_all(self, rows: Sequence[Row], owners: Sequence[int], failed: list[tuple[int, BaseException]]) -> int:
        """Writes rows; returns how many were stored. Adds to `failed` the segments whose rows the target refuses.

        A step's rows are stored together or not at all. `owners`: the segment of each row, in ascending order.
        """
        stored, left = 0, [(0, len(rows))]
        while left:
            start, end = left.pop()
            if start == end:
                continue
            try:
                self._write(rows[start:end])
            except RowRefused as error:
                # write the rows before and after the step separately: repeating all at each refusal may take hours
                refused = owners[start + error.index]
                failed.append((refused, error))
                left += [(bisect_right(owners, refused, start, end), end), (start, bisect_left(owners, refused, start))]
            else:
                stored += end - start
        return stored

    def _write(self, rows: Sequence[Row]) -> None:
        try:
            if self._connection is None:
                self._connection = self._open(self._sink, self._consumer)
            self._connection.write(rows, {}, {})
        except SinkUnavailable as error:
            if not error.may_return:
                raise
            raise SinkAway(f"{self._sink} is away: {error}") from error

    def _origins(self, segments: Segments) -> Iterator[Origin]:
        return origins_of(segments.given, extend_all(segments.paths, self._name))

    def _make(
        self, segments: Segments, results: Sequence[Any], failed: list[tuple[int, BaseException]]
    ) -> tuple[list[Row], list[int]]:
        """Returns the rows of results, and the index of each row's segment; adds the failed segments to `failed`."""
        rows, owners = list[Row](), list[int]()
        for index, (result, digest) in enumerate(zip(results, self._origins(segments), strict=True)):
            if type(result) is FailedCall:
                failed.append((index, result.error))
                continue
            try:
                values = [*self._rows.values_of(result if self._generator else (result,))]
            except BaseException as error:  # a key of a dict may raise anything when it is compared
                failed.append((index, raised(self._task, error)))
                continue
            rows += [Row(row_hash(digest, number), each) for number, each in enumerate(values)]
            owners += [index] * len(values)
        return rows, owners

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
