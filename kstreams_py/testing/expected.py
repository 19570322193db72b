"""Expected: a test's declaration of the outputs that the records of a topic must have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kstreams_py.errors import HistoryError
from kstreams_py.graph.anomalies import TOLERATED, Kind
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.testing.events import Read, Sent

Content = tuple[str, bytes | None, bytes | None]
"""Topic, key, value."""

Pair = tuple[bytes | None, bytes | None]
"""Key and value of a record in a topic."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The outputs that the records of a topic must have. Raises HistoryError for invalid arguments.

    - `inputs`: a topic, or several for a join of one record each, partition by partition.
    - `to`: the topics of the outputs. Several Expected with the same `to` describe an alts, or several processors.
    - `outputs`: takes the Read of each input, and returns (topic, key, value) of each output of the step, as bytes.
      None if records pass unchanged to the only topic in `to`.
    - `guarantee`: the guarantee of the processor. Anomalies that it tolerates (graph/anomalies.py) are not reported.
    """

    inputs: str | Sequence[str]
    to: str | Sequence[str]
    outputs: Callable[..., Iterable[Content]] | None = None
    guarantee: Guarantee | str = Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        if self.guarantee not in TOLERATED:
            raise HistoryError(f"{self.name}: guarantee={self.guarantee!r}: give one of {', '.join(TOLERATED)}")
        if self.outputs is None and (len(listed(self.inputs)) != 1 or len(listed(self.to)) != 1):
            raise HistoryError(f"{self.name}: give outputs=, a function: only one topic passes through to one other")

    @property
    def name(self) -> str:
        """The name of this object in messages."""
        return f"Expected({' and '.join(listed(self.inputs))} to {', '.join(listed(self.to))})"

    @property
    def tolerated(self) -> frozenset[Kind]:
        """The anomalies that the guarantee tolerates among these outputs."""
        return TOLERATED[Guarantee(self.guarantee)]

    def step(self, inputs: tuple[Read, ...]) -> list[tuple[str, Pair]]:
        """Returns topic and contents of each output that these inputs must have."""
        read = inputs[0]
        if self.outputs is None:
            return [(listed(self.to)[0], (read.key, read.value))]
        try:
            found = [(topic, (key, value)) for topic, key, value in self.outputs(*inputs)]
        except Exception as error:
            raise HistoryError(f"{self.name}: outputs() failed at {read}: {type(error).__name__}: {error}") from error
        for topic, (key, value) in found:
            if topic not in listed(self.to):
                raise HistoryError(f"{self.name}: outputs() returned a record for {topic!r}: add it to `to`")
            if not isinstance(key, bytes | None) or not isinstance(value, bytes | None):
                raise HistoryError(f"{self.name}: outputs() returned ({key!r}, {value!r}): return bytes or None")
        return found


def pair_of(event: Sent | Read) -> Pair:
    """Returns the contents by which the checker identifies a record of a topic."""
    return event.key, event.value


def listed(names: str | Sequence[str]) -> Sequence[str]:
    """Returns one name or several as a sequence."""
    return (names,) if isinstance(names, str) else names
