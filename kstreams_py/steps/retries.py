"""Which failures of a function are tried again, and how often each step was tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kstreams_py.errors import DecodeError, UserMistake
from kstreams_py.graph.retry import Retry, Then
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.plan import read_by


class Retries:
    """Counts the attempts at steps that failed. A count outlives a rewind, and ends with the commit of its step."""

    def __init__(self, retry: Retry) -> None:
        self.retry = retry
        self._failed: dict[tuple[tuple[str, int, int], ...], int] = {}
        """How many attempts failed, by the records that the step reads."""

    def covers(self, error: BaseException) -> bool:
        """Returns whether another attempt may succeed: it cannot for mistakes in the program or wrong bytes."""
        return isinstance(error, self.retry.classes) and not isinstance(error, UserMistake | DecodeError)

    def attempts(self, steps: Sequence[Any]) -> int:
        """Returns the number of the attempt at steps run together; for a batch, that of the step tried least often."""
        return 1 + min(self._failed.get(read_by(step), 0) for step in steps)

    def is_last(self, attempts: int) -> bool:
        """Returns whether no attempt follows the one with this number."""
        return attempts >= self.retry.attempts and self.retry.then is not Then.PAUSE

    def failed(self, steps: Sequence[Any], attempts: int) -> None:
        """Notes that the attempt with this number has failed, and that another follows."""
        self._failed |= dict.fromkeys(map(read_by, steps), attempts)

    def committed(self, positions: Positions) -> None:
        """Forgets the steps before these next offsets, and those of partitions that are no longer held."""
        if self._failed:
            self._failed = {
                read: attempts
                for read, attempts in self._failed.items()
                if all(positions.get(TopicPartition(topic, n), offset + 1) <= offset for topic, n, offset in read)
            }
