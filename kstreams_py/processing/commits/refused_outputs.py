"""Outputs that the broker returned because a topic refuses one of them; their steps are not run again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kstreams_py.errors import KStreamsError, RecordRefused, Refused
from kstreams_py.kafka.contracts import TOPIC, Output
from kstreams_py.steps.outputs import delivery_hash_of
from kstreams_py.steps.plan import Plan

Replacement = Callable[[Output, Plan, RecordRefused], Output | RecordRefused | None]
"""Returns the dead letter for a refused output, or why there is none; None if no step of the plan made the output."""


class RefusedOutputs:
    """Refused outputs: they are written one at a time, and a dead letter replaces the one that is refused again."""

    def __init__(self, replacement: Replacement, note: Callable[[Output, Output | None], None]) -> None:
        """`note` is called with each output that will not be written, and the dead letter in its place, or None."""
        self.apart: deque[Output] = deque()
        """Outputs to be written one by one, because one of them is refused."""
        self.mistake: RecordRefused | None = None
        """The refusal of an output that no dead letter replaces: to be raised once all others are delivered."""
        self._replacement = replacement
        self._note = note
        self._plans: list[Plan] = []
        """The plans written since the last commit, to find the step of a refused output."""
        self._replaced: set[bytes | None] = set()
        """Delivery hashes of the steps that have a dead letter in place of an output since the last commit."""
        self._least: set[bytes | None] = set()
        """Delivery hashes of the steps whose dead letter was refused, too, and is replaced by the least one."""

    def wrote(self, plan: Plan) -> None:
        """Notes that the outputs of a plan are on their way."""
        self._plans.append(plan)

    def committed(self) -> None:
        """Notes that everything that was written is acknowledged."""
        self._plans.clear()
        self._replaced.clear()
        self._least.clear()

    def set_apart(self, refused: Refused) -> None:
        """Sets apart returned outputs, at least one of which is refused; replaces the output if there is only one."""
        if not self._plans:
            raise refused.mistake
        if len(refused.outputs) != 1:
            self.apart += refused.outputs
            return
        (output,) = refused.outputs
        try:
            self._replace(output, refused.mistake)
        except KStreamsError:  # from the schema registry
            self.apart.appendleft(output)
            raise

    def _replace(self, output: Output, mistake: RecordRefused) -> None:
        """Sets the dead letter of a refused output apart, to be written in its place."""
        for plan in self._plans:
            dead = self._replacement(output, plan, mistake)
            if isinstance(dead, RecordRefused):
                mistake = dead
                break
            if dead is not None:
                step = delivery_hash_of(dead)
                replaced = self._least if output[TOPIC] == dead[TOPIC] else self._replaced
                if step not in replaced:
                    replaced.add(step)
                    self.apart.append(dead)
                    self._note(output, dead)
                    return
                if replaced is self._least:
                    break
                self._note(output, None)  # several outputs of one step may be refused: one dead letter says so
                return
        self._note(output, None)
        self.mistake = self.mistake or mistake  # there are no dead letters, or the least one is refused, too
