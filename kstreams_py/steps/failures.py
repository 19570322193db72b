"""What follows the failure of a step: another attempt, the end of the worker, or a dead letter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kstreams_py.errors import (
    DecodeError,
    EncodeError,
    FunctionExited,
    GraphError,
    KStreamsError,
    RecordRefused,
    Refused,
    RowRefused,
    Stop,
)
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.functions import show_function
from kstreams_py.graph.retry import Retry, Then
from kstreams_py.records import Inputs, Positions, TopicPartition
from kstreams_py.steps.dead_letters import DeadLetters, Failure
from kstreams_py.steps.plan import Again, Intake, Plan, read_by


class Refusal(NamedTuple):
    """The reason why a topic refuses an output of a step; `least` if the step's dead letter was refused, too."""

    mistake: RecordRefused
    least: bool = False


def next_refusal(before: Refusal | None, error: Refused) -> Refusal:
    """Returns the next refusal: first of an output, then of its dead letter. Raises the mistake after both."""
    if before is None:
        return Refusal(error.mistake)
    if before.least:
        raise error.mistake
    return Refusal(before.mistake, least=True)


class Retries:
    """Counts the attempts at steps that failed. A count outlives a rewind, and ends with the commit of its step."""

    def __init__(self, retry: Retry) -> None:
        self.retry = retry
        self._failed: dict[tuple[tuple[str, int, int], ...], int] = {}
        """How many attempts failed, by the records that the step reads."""

    def attempts(self, steps: Sequence[Any]) -> int:
        """Returns the number of the attempt at steps run together; in a batch, the step tried least often decides."""
        return 1 + min(self._failed.get(read_by(step), 0) for step in steps)

    def failed(self, steps: Sequence[Any], attempts: int) -> None:
        """Notes that the attempt with this number has failed, and that another follows."""
        self._failed |= dict.fromkeys(map(read_by, steps), attempts)

    def committed(self, positions: Positions) -> None:
        """Forgets the steps before these next offsets, and the steps of partitions that are no longer held."""
        if self._failed:
            self._failed = {
                read: attempts
                for read, attempts in self._failed.items()
                if all(positions.get(TopicPartition(topic, n), offset + 1) <= offset for topic, n, offset in read)
            }


class ProcessKilled(BaseException):
    """Ends a test's process as SIGKILL does, even inside a function: handlers of any exception let this one pass."""


def exit_error(what: str, error: BaseException, remedy: str) -> FunctionExited:
    """Returns the error that stops the worker instead of one that would end the process, perhaps with status 0.

    - `what`: what the error has ended.
    - `remedy`: what an exception of another class is for.

    Raises a KeyboardInterrupt again, with a note: it may be a Ctrl-C if a test runs the worker; the slot can tell.
    """
    text = f"{what}: raise kstreams_py.Stop to stop the worker, or an exception of another class {remedy}"
    if isinstance(error, KeyboardInterrupt):
        error.add_note(text)
        raise error
    exited = FunctionExited(text)
    exited.__cause__ = error
    return exited


class Failures:
    """Decides what follows the failure of a step of one processor, and writes that into the plan."""

    def __init__(
        self,
        processor: Processor,
        dead_letters: DeadLetters | None,
        describe: Callable[[Inputs, BaseException, int], Failure],
        refusal: Callable[[Inputs], Refusal | None],
    ) -> None:
        """Handles the failures of one processor.

        - `dead_letters`: makes the dead letters; None if the processor declares none.
        - `describe`: returns the failure of the step that reads these records, at an attempt with this number.
        - `refusal`: returns why an output of the step is refused; None if none is.
        """
        self.retries = Retries(processor.retry) if processor.retry is not None else None
        self._processor = processor
        self.dead_letters = dead_letters
        self._describe = describe
        self._refusal = refusal
        self._stops: tuple[type[BaseException], ...] = (Stop, MemoryError, FunctionExited, *processor.stop_on)

    def handle(self, inputs: Inputs, error: BaseException, plan: Plan, *, tried: bool = True) -> bool:
        """Makes a dead letter; returns False if the exception stops the worker instead, or the step is run again.

        `tried`: whether the function was called. A step whose schema could not be read, for example, was not tried.
        """
        if isinstance(error, SystemExit | KeyboardInterrupt):
            error = self._exited(inputs, error)
        if isinstance(error, EncodeError):
            error = self._unwritable(error)
        elif type(error) is GraphError:  # a result that fits none of the outputs
            error.args = (f"{error}; {self._reading(inputs, error)}",)
        attempts = 1
        if self.retries_on(error):
            assert self.retries is not None
            step: Any = inputs if self._processor.joins else inputs[0]
            together = plan.intake.steps if self._processor.batch else [step]
            attempts = self.retries.attempts(together)
            if not self.retries.retry.is_last(attempts):
                plan.again = Again(together, error, attempts)
                return False
            if self.retries.retry.then is Then.STOP:
                error.add_note(self._reading(inputs, error))
                plan.interrupt, plan.tried = error, {}
                return False
        elif isinstance(error, self._stops) or (
            isinstance(error, KStreamsError) and not isinstance(error, DecodeError)
        ):
            if not isinstance(error, KStreamsError):  # the user's own: its traceback is printed
                error.add_note(self._reading(inputs, error))
            plan.interrupt = error
            plan.tried = Intake([inputs]).positions() if tried and not isinstance(error, Stop) else {}
            return False
        try:
            self.add_dead_letter(inputs, error, plan, attempts)
        except KStreamsError as unavailable:  # the schema registry, at the first dead letter
            plan.interrupt, plan.tried = unavailable, {}
            return False
        return True

    def retries_on(self, error: BaseException) -> bool:
        """Returns whether the step may be run again after this error."""
        retry, stop_on = self._processor.retry, self._processor.stop_on
        return retry is not None and retry.covers(error) and not isinstance(error, stop_on)

    def add_dead_letter(self, inputs: Inputs, error: BaseException, plan: Plan, attempts: int = 1) -> None:
        """Adds the dead letter of a step to the plan; only the failure if the processor declares no dead letters."""
        failure = self._describe(inputs, error, attempts)
        if self.dead_letters is not None:
            refusal = self._refusal(inputs)
            least = refusal is not None and refusal.least
            plan.outputs.append(self.dead_letters.of(failure, least=least))
            plan.dead_letters += 1
        plan.failures.append(failure)

    def unreplaceable(self, mistake: RecordRefused, inputs: Inputs) -> RecordRefused:
        """Returns the mistake that ends the worker: no dead letter replaces a refused output of these records."""
        text = (
            f"{self._processor.id}: reading {self._describe(inputs, mistake, 1).read}: {mistake}; or declare a topic "
            "for dead letters (`errors=`), and the record becomes one: without it, its worker ends"
        )
        return RowRefused(text, mistake.index) if isinstance(mistake, RowRefused) else type(mistake)(text)

    def _unwritable(self, error: EncodeError) -> EncodeError:
        """Returns the error for a value that cannot be encoded for its topic, with the function and the topic."""
        topics = ", ".join(topic.name for topic in self._processor.outputs)
        named = EncodeError(f"{show_function(self._processor.function)} returned a value for {topics}: {error}")
        return named.with_traceback(error.__traceback__)

    def _reading(self, inputs: Inputs, error: BaseException) -> str:
        """Returns the function, with its line, and what it has read."""
        return f"{show_function(self._processor.function)} read {self._describe(inputs, error, 1).read}"

    def _exited(self, inputs: Inputs, error: BaseException) -> FunctionExited:
        name = getattr(self._processor.function, "__name__", "its function")
        what = f"{self._processor.id}: {name} ended by {self._describe(inputs, error, 1)}"
        return exit_error(what, error, "for a dead letter")
