"""Counts the steps of one worker once it is known whether they are committed.

The counts that an operator reads match the topics: the steps of an attempt are counted at its commit, and the steps of
a failed attempt are counted as rolled back. Steps are counted by the intake, not one by one.
"""

from __future__ import annotations

from typing import Final

from kstreams_py.metrics import Counters, StepCounts
from kstreams_py.records import Positions

NOTHING: Final = StepCounts()

Asked = list[tuple[StepCounts, Positions]]
"""Steps whose commit was requested, and the next offsets after them."""


class Tally:
    """The steps of one worker that are not counted yet.

    If an attempt fails without an answer to its commit, only the offsets tell whether its steps are committed: `decide`
    counts them when the worker resumes from its offsets.
    """

    def __init__(self, counters: Counters) -> None:
        self.open = NOTHING
        """The steps that were run and are not committed."""
        self._counters = counters
        self._asked: Asked = []
        self._is_repeated = False
        """Whether the same commit was requested before, without an answer."""
        self._undecided: Asked = []
        """The commits that failed attempts requested, and that got no answer."""

    def ran(self, counts: StepCounts) -> None:
        """Adds steps that were run."""
        self.open += counts

    def ask(self, positions: Positions, counts: StepCounts | None = None) -> None:
        """Notes a requested commit of these open steps (None: all); `positions` are the next offsets after them."""
        self._is_repeated = bool(self._asked)
        self._asked = [(self.open if counts is None else counts, positions)]

    def refused(self) -> None:
        """Notes that the requested commit is refused. An earlier request that got no answer may be the reason."""
        if not self._is_repeated:
            self._asked = []

    def committed(self, counts: StepCounts | None = None) -> None:
        """Counts these open steps (None: all of them) as committed."""
        counts = self.open if counts is None else counts
        self.open -= counts
        self._asked = []
        self._counters.settled(counts)

    def rolled_back(self) -> None:
        """Counts the open steps as rolled back, except those whose commit got no answer."""
        for counts, _ in self._asked:
            self.open -= counts
        self._counters.undone(self.open)
        self._undecided += self._asked
        self.open, self._asked = NOTHING, []

    def decide(self, positions: Positions) -> None:
        """Counts steps whose commit got no answer: they are committed if the worker resumes past them.

        - `positions`: the offsets at which the worker resumes in the partitions that it holds.
        """
        for counts, after in self._undecided:
            held = after.keys() & positions.keys()
            is_committed = bool(held) and all(positions[tp] >= after[tp] for tp in held)
            (self._counters.settled if is_committed else self._counters.undone)(counts)
        self._undecided = []

    def give_up(self) -> None:
        """Counts steps whose commit got no answer as rolled back: another worker may have run them since."""
        for counts, _ in self._undecided:
            self._counters.undone(counts)
        self._undecided = []
