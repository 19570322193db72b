"""The inputs of a source that are neither acknowledged nor given back. The first removal of an input decides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Generic, NamedTuple, TypeVar

from kstreams_py.jobs.identity import SegmentId

ClaimT = TypeVar("ClaimT")


class Times(NamedTuple):
    """When inputs were read and when they become overdue, by the clock of `PendingInputs.add`."""

    since: float
    due: float


class OldestInput(NamedTuple, Generic[ClaimT]):
    """The input that was read first, and when it was read, by the clock of `PendingInputs.add`."""

    segment: SegmentId
    claim: ClaimT
    since: float


class PendingInputs(Generic[ClaimT]):
    """The inputs of one source that are under way, in the order in which they become overdue.

    An input leaves by `complete`, `expire` or `take_all`, whichever comes first. So it is never both acknowledged and
    read again, and anything that comes later for it changes nothing.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: the seconds after which an input is read again."""
        self.timeout = timeout
        self._inputs: dict[SegmentId, tuple[ClaimT, Times]] = {}
        self.late = 0
        """The number of completions of inputs that were not pending: expired, completed, or never read here."""

    def __len__(self) -> int:
        return len(self._inputs)

    def __contains__(self, segment: SegmentId) -> bool:
        return segment in self._inputs

    @property
    def segments(self) -> Collection[SegmentId]:
        """The inputs, in the order in which they become overdue."""
        return self._inputs.keys()

    @property
    def claims(self) -> Iterator[ClaimT]:
        """The claims of the inputs."""
        return (claim for claim, _ in self._inputs.values())

    @property
    def oldest(self) -> OldestInput[ClaimT] | None:
        """The input that was read first; None if there is none. Any thread may read it."""
        found = min(self._inputs.copy().items(), key=lambda each: each[1][1].since, default=None)
        if found is None:
            return None
        segment, (claim, times) = found
        return OldestInput(segment, claim, times.since)

    def claim(self, segment: SegmentId) -> ClaimT | None:
        """Returns the claim of an input; None if it is not pending."""
        found = self._inputs.get(segment)
        return None if found is None else found[0]

    def since(self, segment: SegmentId) -> float | None:
        """Returns when an input was read; None if it is not pending."""
        found = self._inputs.get(segment)
        return None if found is None else found[1].since

    def add(self, segments: Sequence[SegmentId], claims: Iterable[ClaimT], now: float) -> None:
        """Adds inputs. `now`: seconds of a clock that never goes back."""
        self._inputs.update(zip(segments, zip(claims, repeat(Times(now, now + self.timeout))), strict=True))

    def complete(self, segments: Iterable[SegmentId]) -> list[ClaimT]:
        """Removes complete inputs, and returns their claims. Counts inputs that are not pending."""
        claims = list[ClaimT]()
        for segment in segments:
            if (found := self._inputs.pop(segment, None)) is None:
                self.late += 1
            else:
                claims.append(found[0])
        return claims

    def overdue(self, now: float) -> list[SegmentId]:
        """Returns the inputs that have been pending for the whole timeout."""
        found = list[SegmentId]()
        for segment, (_, times) in self._inputs.items():
            if times.due > now:
                break
            found.append(segment)
        return found

    def expire(self, segments: Iterable[SegmentId]) -> list[ClaimT]:
        """Removes inputs that are to be read again, and returns their claims."""
        return [found[0] for segment in segments if (found := self._inputs.pop(segment, None)) is not None]

    def extend(self, segments: Iterable[SegmentId], now: float) -> None:
        """Restarts the timeout of inputs that make progress."""
        for segment in segments:
            if (found := self._inputs.pop(segment, None)) is not None:
                self._inputs[segment] = found[0], Times(found[1].since, now + self.timeout)

    def take_all(self) -> list[ClaimT]:
        """Removes all inputs, and returns their claims: the end of a job gives them back."""
        taken = [claim for claim, _ in self._inputs.values()]
        self._inputs.clear()
        return taken
