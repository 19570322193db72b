"""The traces of segments: a span for each call of a task, and the context that the results of the call inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kstreams_py.graph.channels import JobTask
from kstreams_py.jobs.identity import FIRST, ROOT, Origin, Path, SegmentId, name_in_path
from kstreams_py.kafka.contracts import Output
from kstreams_py.records import Headers, Inputs, KeptRecord, Message
from kstreams_py.steps.tracing import Note, Tracing, put_in_trace


class Traces:
    """The trace contexts of the inputs under way in a job; only a traced job has them.

    They are kept beside the segments, which are the same without tracing.
    """

    def __init__(self) -> None:
        self._read: dict[SegmentId, Message] = {}
        """The record of each input, or a stand-in for it, with the headers that it came with."""
        self._made: dict[SegmentId, dict[Path, Headers]] = {}
        """The context of each step's span, by input and by the step's path, which includes the task."""
        self._gathered: dict[SegmentId, dict[Path, Sequence[Path]]] = {}
        """The paths of the segments that a gather has paired, by input and by the step's path, likewise."""
        self._failed: dict[SegmentId, Headers] = {}

    def begin(self, inputs: Mapping[SegmentId, Message]) -> None:
        """Takes inputs: the record of each, or a stand-in for it."""
        self._read |= inputs
        self._made |= {segment: {} for segment in inputs}

    def keep(self, segment: SegmentId, step: Path, context: Headers) -> None:
        """Keeps the context of a step, unless its input is no longer under way. Any thread may call this method."""
        if (made := self._made.get(segment)) is not None:
            made[step] = context

    def fail(self, segment: SegmentId, context: Headers) -> None:
        """Keeps the context of the first failed step of an input. Any thread may call this method."""
        self._failed.setdefault(segment, context)

    def gather(self, segment: SegmentId, step: Path, paths: Sequence[Path]) -> None:
        """Takes the paths of the segments that a gather has paired."""
        self._gathered.setdefault(segment, {})[step] = paths

    def context(self, segment: SegmentId, step: Path) -> Headers:
        """Returns the context of a step; none if it has none."""
        return self._made.get(segment, {}).get(step, ())

    def failure(self, segment: SegmentId) -> Headers:
        """Returns the context of the failed step; without one, of the last step, whose results were not written."""
        made = [*self._made.get(segment, {}).values()]
        return self._failed.get(segment) or (made[-1] if made else ())

    def inputs(self, channels: str, segment: SegmentId, path: Path, step: Path) -> Inputs:
        """Returns stand-ins for the segments that a step reads. `channels`: the names of their channels."""
        found = list[Message]()
        for each in self._gathered.get(segment, {}).get(step, (path,)):
            made_by = Path(each[: -len(FIRST)])
            read = self._read.get(segment) if each == ROOT else None
            found.append(read or stand_for(channels, self.context(segment, made_by)))
        return tuple(found)

    def forget(self, segments: Iterable[SegmentId]) -> None:
        """Forgets inputs that are no longer under way."""
        for segment in segments:
            for kept in (self._read, self._made, self._gathered, self._failed):
                kept.pop(segment, None)


def stand_for(channel: str, headers: Headers) -> KeptRecord:
    """Returns a record that stands in for a segment of a channel, for tracing."""
    return KeptRecord((channel, -1, -1), (0, -1), (None, None), headers)


class TaskTraces:
    """The spans of the calls of one task."""

    def __init__(self, task: JobTask, traces: Traces, tracing: Tracing) -> None:
        self._task, self._traces, self._tracing = task, traces, tracing
        self._name = name_in_path(task.id)
        self._channels = ", ".join(channel.name for channel in task.inputs)

    @contextmanager
    def call(self, segment: SegmentId, path: Path, origin: Origin, attempt: int) -> Iterator[Note]:
        """Makes the span of a call the current span; yields a function that notes the call's results, or its error."""
        step = Path(path + self._name)
        inputs = self._traces.inputs(self._channels, segment, path, step)
        with self._tracing.call(inputs, origin, attempt) as note:
            context = self._tracing.headers()
            self._traces.keep(segment, step, context)

            def note_end(records: int, error: BaseException | None) -> None:
                note(records, error)
                if error is not None:
                    self._traces.fail(segment, context)

            yield note_end

    def gather(self, segment: SegmentId, common: Path, paths: Sequence[Path]) -> None:
        """Takes the paths of the segments that the next step with this path reads."""
        self._traces.gather(segment, Path(common + self._name), paths)

    def put(self, records: list[Output], segment: SegmentId, path: Path) -> list[Output]:
        """Returns the records of a step's results, with the context of the step in their headers."""
        with self._tracing.resume(self._traces.context(segment, Path(path + self._name))):
            return put_in_trace(records, [], self._tracing)

    def wrap(self) -> JobTask:
        """Returns the task with a function that takes a TracedCall as its first argument and runs in its span."""
        function, generator = self._task.function, self._task.generator

        def end(note: Note, result: Any) -> Any:
            note(self.count(result), None)
            return result

        async def await_traced(call: TracedCall, *arguments: Any) -> Any:
            with call() as note:
                try:
                    called = function(*arguments)
                    return end(note, [each async for each in called] if generator else await called)
                except Exception as error:
                    failure = error
                    note(0, error)
            raise failure

        def call_traced(call: TracedCall, *arguments: Any) -> Any:
            with call() as note:
                try:
                    called = function(*arguments)
                    return end(note, [*called] if generator else called)
                except Exception as error:
                    failure = error
                    note(0, error)
            raise failure

        return replace(self._task, function=await_traced if self._task.asynchronous else call_traced, generator=False)

    def count(self, result: Any) -> int:
        """Returns how many results a call has made."""
        if self._task.generator:
            return len(result)
        if isinstance(result, Mapping) and len(self._task.written) > 1:
            return sum(value is not None for value in result.values())
        return int(result is not None)


TracedCall = Callable[[], Any]
"""Opens the span of a call, as TaskTraces.call does."""
