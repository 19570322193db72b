"""The atomic steps of a worker on a store, and which one follows which.

A *lane* is what the algorithm's description calls a worker: it holds one object at a time. A process has several, so
that the requests for all of them travel together. The names of the description (A2 to A9) are in brackets.

- At a start, `Find` looks for the object that the lane held when its process ended; it goes on as after `Take`.
- `Take` [A2] moves the oldest token to the lane; `Own` [A3] takes the object unless another lane has it.
- `Resume`, only after `Find`, reads the events that the lane had taken.
- `Pop` [A4 to A6] takes the object's oldest events and gives them ids, or releases the object if there are none.
- the events are sent [A7]; `Complete` [A8] forgets them, and keeps the last id for the next predecessor.
- `Drop` [A9] gives the token up: once nothing is left, or if another lane owns the object.
- `Return`, which the description lacks, puts the token back where a worker is stopped: others go on with the object.
- `Begin`, with batches, makes one step of `Take`, `Own`, `Pop` and `Drop`: the events of most tokens are sent already.

Source: spec of event ordering, seed 001.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kstreams_py.ordering.events import Work


@dataclass(frozen=True, slots=True)
class Find:
    """Reads the object in the lane's slot. Answer: its name, or None."""

    lane: str


@dataclass(frozen=True, slots=True)
class Take:
    """Moves the oldest token to the lane's slot. Answer: the object's name, or None without a token."""

    lane: str


@dataclass(frozen=True, slots=True)
class Own:
    """Makes the lane the owner, unless the object has one. Answer: whether the lane is the owner."""

    lane: str
    object: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Reads the events that the lane had taken. Answer: Work, maybe empty."""

    lane: str
    object: str


@dataclass(frozen=True, slots=True)
class Pop:
    """Moves up to `limit` of the object's oldest events to the lane, with new ids; without any, removes the owner.

    Answer: Work, empty if the object has no owner now.
    """

    lane: str
    object: str
    limit: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Removes the lane's events, and notes the id of the last one as the object's newest."""

    lane: str
    object: str
    newest_id: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Empties the lane's slot."""

    lane: str


@dataclass(frozen=True, slots=True)
class Return:
    """Moves the token from the lane's slot back, as the oldest one, and removes the lane as the owner if it is that.

    The lane has taken no events.
    """

    lane: str
    object: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Moves the oldest token whose object has events and no owner to the lane's slot, and up to `limit` of its events.

    Older tokens are dropped. Answer: Begun, or None if there is no such token among TOKENS_MAX.
    """

    lane: str
    limit: int


@dataclass(frozen=True, slots=True)
class Begun:
    """An object that a lane owns now, and the events that it has taken."""

    object: str
    work: Work


Step: TypeAlias = Find | Take | Own | Resume | Pop | Complete | Drop | Return | Begin
Answer: TypeAlias = str | bool | Work | Begun | None

TOKENS_MAX: Final = 200
"""Tokens that one `Begin` looks at, so that others get their turn at the store."""


def begin(step: Begin, run: Callable[[Step], Answer]) -> Begun | None:
    """The answer of a `Begin`, by the steps that it stands for."""
    for _ in range(TOKENS_MAX):
        name = run(Take(step.lane))
        if not isinstance(name, str):
            return None
        work = run(Pop(step.lane, name, step.limit)) if run(Own(step.lane, name)) else NOTHING
        if isinstance(work, Work) and work.events:
            return Begun(name, work)
        run(Drop(step.lane))
    return None


NOTHING: Final = Work()


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a lane is in the algorithm.

    - `step`: the next one; None while `work` has to be sent.
    - `restarts`: the lane goes on with what it held when its process ended.
    """

    name: str
    limit: int
    step: Step | None
    object: str = ""
    work: Work = NOTHING
    restarts: bool = False

    @classmethod
    def start(cls, name: str, limit: int) -> Lane:
        """A lane of a process that starts. `limit`: how many events it takes in one step."""
        return cls(name, limit, Find(name), restarts=True)

    @property
    def is_idle(self) -> bool:
        """It holds no object."""
        return isinstance(self.step, Take | Begin)

    def chain(self, *, stops: bool) -> tuple[list[Step], Lane]:
        """The next steps whose answers decide nothing, and the lane after them.

        - `stops`: the worker is being stopped: the lane gives its object back before it takes events of it.
        """
        steps: list[Step] = []
        lane = self.stopped() if stops else self
        while isinstance(lane.step, Complete | Drop | Return):
            steps.append(lane.step)
            lane = lane.after(None)
            lane = lane.stopped() if stops else lane
        return steps, lane

    def after(self, answer: Answer) -> Lane:
        """The lane after its step, which had this answer."""
        match self.step:
            case Begin() if isinstance(answer, Begun):
                return replace(self, object=answer.object, step=None, work=answer.work)
            case Find() | Take() if isinstance(answer, str):
                return replace(self, object=answer, step=Own(self.name, answer))
            case Own() if answer is True:
                taken = Resume(self.name, self.object) if self.restarts else self._pop()
                return replace(self, step=taken, restarts=False)
            case Resume() | Pop() if isinstance(answer, Work) and answer.events:
                return replace(self, step=None, work=answer)
            case Resume() | Complete():
                return replace(self, step=self._pop(), work=NOTHING)
            case Own() | Pop():
                return replace(self, step=Drop(self.name))
            case _:
                return replace(self, step=self._take(), object="", work=NOTHING, restarts=False)

    def stopped(self) -> Lane:
        """The lane of a worker that stops: it gives its object back before it takes events of it."""
        if isinstance(self.step, Own | Pop) and not self.restarts:
            return replace(self, step=Return(self.name, self.object))
        return self

    def sent(self) -> Lane:
        """The lane once its events are acknowledged."""
        return replace(self, step=Complete(self.name, self.object, self.work.newest_id))

    def _take(self) -> Take | Begin:
        """With a batch of 1 the steps are those of the description."""
        return Take(self.name) if self.limit == 1 else Begin(self.name, self.limit)

    def _pop(self) -> Pop:
        return Pop(self.name, self.object, self.limit)
