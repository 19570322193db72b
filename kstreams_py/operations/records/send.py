"""Sends records to a topic, each acknowledged by all in-sync replicas, and reports which were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from kstreams_py.errors import BrokerUnavailable, ClientError, KStreamsError, Refused, UserMistake
from kstreams_py.kafka.contracts import PARTITION, Output, ProducerMode, TopicInfo
from kstreams_py.operations.records.topic import check_partition
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.steps.environment import Environment

NAME: Final = "kstreams-send"

IDEMPOTENT: Final = ProducerMode(transactional=False, acks=-1, may_repeat=False)

UNCONFIRMED_MAX: Final = 1_000
"""The maximum number of lines that are sent before a wait for their acknowledgements."""

CONFIRM_SECONDS: Final = 0.2
"""Seconds after which the next line causes a wait for acknowledgements."""

ALONE: Final = 0
"""The line number of a record that comes from no line."""

LINES_NAMED: Final = 20
"""The maximum number of refused lines that a message names."""


class LineSender:
    """Sends lines to one topic with an idempotent producer. Use it as a context manager.

    - `sent`: how many lines are acknowledged.
    """

    def __init__(self, environment: Environment, topic: TopicInfo) -> None:
        self._topic = topic
        self._clock = environment.clock
        self._producer = environment.cluster.producer(IDEMPOTENT, NAME)
        self._attempts = Attempts(NAME, NAME, environment.sleep)
        self.sent = 0
        self._unconfirmed: dict[int, Output] = {}
        """The outputs that are not acknowledged yet, by line number."""
        self._confirmed_at = self._clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.drop()

    def send(self, lines: Iterable[bytes], parse: Callable[[bytes], Output]) -> None:
        """Sends a record for each line that is not blank, and returns once all of them are acknowledged.

        Raises UserMistake for an invalid line, once the lines before it are acknowledged. Raises RecordRefused for
        lines that the topic refuses, and BrokerUnavailable if no broker answers. The messages say what was sent.
        """
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                output = parse(line)
                check_partition(self._topic, output[PARTITION])
            except UserMistake as error:
                self.confirm()
                raise type(error)(
                    f"line {number}: {error} ({self.sent:,} sent; no record from line {number} on was sent)"
                ) from None
            self._write(number, output)
        self.confirm()

    def send_one(self, output: Output) -> None:
        """Sends one record, and returns once it is acknowledged. Raises the same as `send`."""
        check_partition(self._topic, output[PARTITION])
        self._write(ALONE, output)
        self.confirm()

    def _write(self, number: int, output: Output) -> None:
        self._unconfirmed[number] = output
        outputs = [output]
        self._guard(lambda: self._attempts.call(lambda: self._producer.write(outputs)))
        if len(self._unconfirmed) >= UNCONFIRMED_MAX or self._clock() - self._confirmed_at >= CONFIRM_SECONDS:
            self.confirm()

    def confirm(self) -> None:
        """Waits until all written lines are acknowledged. Raises the same as `send`."""
        if self._unconfirmed:
            self._guard(self._producer.flush)
            self.sent += len(self._unconfirmed)
            self._unconfirmed.clear()
        self._confirmed_at = self._clock()

    def _guard(self, act: Callable[[], object]) -> None:
        """Calls the producer, and adds to its errors which lines they concern and what was sent."""
        try:
            act()
        except Refused as error:
            self._name_refused(error)
        except ClientError as error:
            raise BrokerUnavailable(f"{error} ({self._doubt()})") from None
        except KStreamsError as error:
            raise type(error)(f"{error} ({self._doubt()})") from None

    def _name_refused(self, error: Refused) -> None:
        """Waits for the other lines, then raises RecordRefused, which names the lines that were not sent.

        A broker refuses a batch as a whole. Its lines are not written again: later lines may be in the topic already.
        """
        mistake, refused = error.mistake, list(error.outputs)
        while True:
            try:
                self._producer.flush()
                break
            except Refused as another:
                refused += another.outputs
            except ClientError as failure:
                raise BrokerUnavailable(f"{mistake}; {failure} ({self._doubt()})") from None
        if list(self._unconfirmed) == [ALONE]:
            raise mistake from None
        numbers = self._numbers(refused)
        self.sent += len(self._unconfirmed) - len(numbers)
        self._unconfirmed.clear()
        named = ", ".join(map(str, numbers[:LINES_NAMED])) + (", ..." if len(numbers) > LINES_NAMED else "")
        raise type(mistake)(f"{mistake}: not sent: line {named} ({self.sent:,} sent)") from None

    def _numbers(self, refused: Sequence[Output]) -> list[int]:
        """Returns the line numbers of outputs, by key and value, because the client has set partition and timestamp."""
        lines: dict[tuple[bytes | None, bytes | None], list[int]] = {}
        for number, (_, value, key, *_) in self._unconfirmed.items():
            lines.setdefault((key, value), []).append(number)
        return sorted(lines[key, value].pop(0) for _, value, key, *_ in refused)

    def _doubt(self) -> str:
        """Returns, as text, what was sent and what may have been sent, for an error without an answer."""
        numbers = list(self._unconfirmed)
        if numbers == [ALONE]:
            return "it may or may not have been sent"
        return f"{self.sent:,} sent" + (
            f"; lines {min(numbers)} to {max(numbers)} may or may not have been sent" if numbers else ""
        )
