"""Counts the steps of one worker once it is known whether they are committed.

What an operator reads is what the topics have: the steps of an attempt are counted at its commit, and those of an
attempt that failed as rolled back. The numbers are those of whole intakes: nothing is counted for each record.
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
    counts them at the next start from these offsets.
    """

    def __init__(self, counters: Counters) -> None:
        self.open = NOTHING
        """The steps that were run and are not committed."""
        self._counters = counters
        self._asked: Asked = []
        self._is_repeated = False
        """Whether the same commit was requested before, without an answer."""
        self._undecided: Asked = []
        """Those of failed attempts."""

    def ran(self, counts: StepCounts) -> None:
        """Takes steps that were run."""
        self.open += counts

    def ask(self, positions: Positions, counts: StepCounts | None = None) -> None:
        """Notes that a commit is requested, of these open steps or (None) of all; `positions` are those after them."""
        self._is_repeated = bool(self._asked)
        self._asked = [(self.open if counts is None else counts, positions)]

    def refused(self) -> None:
        """Notes that the requested commit is refused. An earlier request without an answer may be the reason."""
        if not self._is_repeated:
            self._asked = []

    def committed(self, counts: StepCounts | None = None) -> None:
        """Counts these open steps, or (None) all of them: they are committed."""
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
        """Counts steps whose commit got no answer: they are committed if the worker goes on behind them.

        - `positions`: the offsets at which the worker goes on in the partitions that it holds.
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
