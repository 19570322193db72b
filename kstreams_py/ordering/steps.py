"""The atomic steps of a worker on a store, and their sequence.

A *lane* is what the algorithm's description calls a worker: it holds one object at a time. A process has several lanes,
so that one request can carry the steps of all lanes. The description's names (A2 to A9) are in brackets.

- At a start, `Find` reads the object that the lane held when its process ended; the lane goes on as after `Take`.
- `Take` [A2] moves the oldest token to the lane; `Own` [A3] takes the object unless another lane has it.
- `Resume`, only after `Find`, reads the events that the lane had taken.
- `Pop` [A4 to A6] takes the object's oldest events and gives them ids, or releases the object if there are none.
- The events are sent [A7]; `Complete` [A8] removes them, and keeps the last id as the next predecessor.
- `Drop` [A9] gives the token up, once no event is left or if another lane owns the object.
- `Return` (not in the description) puts the token back when a worker is stopped; others go on with the object.
- With batches, `Begin` does `Take`, `Own`, `Pop` and `Drop` in one step: most tokens have no event left to send.

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
    """Moves the oldest token to the lane's slot. Answer: the object's name, or None if there is no token."""

    lane: str


@dataclass(frozen=True, slots=True)
class Own:
    """Makes the lane the owner of the object, unless the object has one. Answer: whether the lane is the owner."""

    lane: str
    object: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Reads the events that the lane had taken. Answer: Work, which may be empty."""

    lane: str
    object: str


@dataclass(frozen=True, slots=True)
class Pop:
    """Moves up to `limit` of the object's oldest events to the lane, with ids; if there are none, removes the owner.

    Answer: Work; empty if the owner was removed.
    """

    lane: str
    object: str
    limit: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Removes the lane's events, and notes the last one's id as the object's newest id."""

    lane: str
    object: str
    newest_id: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Empties the lane's slot."""

    lane: str


@dataclass(frozen=True, slots=True)
class Return:
    """Moves the token from the lane's slot back to the queue, as the oldest one. Ends the ownership of the lane.

    It is a step of a lane that has taken no events.
    """

    lane: str
    object: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Moves the oldest token whose object has events and no owner to the lane's slot, with up to `limit` events.

    Older tokens are dropped. Answer: BegunObject, or None if there is no such token among the oldest TOKENS_MAX.
    """

    lane: str
    limit: int


@dataclass(frozen=True, slots=True)
class BegunObject:
    """An object that a lane now owns, and the events that it has taken."""

    object: str
    work: Work


Step: TypeAlias = Find | Take | Own | Resume | Pop | Complete | Drop | Return | Begin
Answer: TypeAlias = str | bool | Work | BegunObject | None

TOKENS_MAX: Final = 200
"""The maximum number of tokens that one `Begin` reads, so that other workers get their turn at the store."""


def begin(step: Begin, run: Callable[[Step], Answer]) -> BegunObject | None:
    """Runs the steps that a `Begin` stands for, and returns its answer."""
    for _ in range(TOKENS_MAX):
        name = run(Take(step.lane))
        if not isinstance(name, str):
            return None
        work = run(Pop(step.lane, name, step.limit)) if run(Own(step.lane, name)) else NOTHING
        if isinstance(work, Work) and work.events:
            return BegunObject(name, work)
        run(Drop(step.lane))
    return None


NOTHING: Final = Work()


@dataclass(frozen=True, slots=True)
class Lane:
    """The place of a lane in the algorithm.

    - `step`: the next step; None while `work` has to be sent.
    - `restarts`: the lane continues with what it held when its process ended.
    """

    name: str
    limit: int
    step: Step | None
    object: str = ""
    work: Work = NOTHING
    restarts: bool = False

    @classmethod
    def start(cls, name: str, limit: int) -> Lane:
        """Returns a lane of a process that starts. `limit`: how many events it takes in one step."""
        return cls(name, limit, Find(name), restarts=True)

    @property
    def is_idle(self) -> bool:
        """Whether the lane holds no object."""
        return isinstance(self.step, Take | Begin)

    def chain(self, *, stops: bool) -> tuple[list[Step], Lane]:
        """Returns the next steps, up to one whose answer decides what follows, and the lane after them.

        - `stops`: the worker is being stopped, so the lane gives its object back before it takes the object's events.
        """
        steps: list[Step] = []
        lane = self.stopped() if stops else self
        while isinstance(lane.step, Complete | Drop | Return):
            steps.append(lane.step)
            lane = lane.after(None)
            lane = lane.stopped() if stops else lane
        return steps, lane

    def after(self, answer: Answer) -> Lane:
        """Returns the lane after its step had this answer."""
        match self.step:
            case Begin() if isinstance(answer, BegunObject):
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
        """Returns the lane of a worker that stops: it gives its object back before it takes the object's events."""
        if isinstance(self.step, Own | Pop) and not self.restarts:
            return replace(self, step=Return(self.name, self.object))
        return self

    def sent(self) -> Lane:
        """Returns the lane after its events were acknowledged."""
        return replace(self, step=Complete(self.name, self.object, self.work.newest_id))

    def _take(self) -> Take | Begin:
        """Returns `Begin`; with a batch of 1, `Take`, so that the steps are exactly as described."""
        return Take(self.name) if self.limit == 1 else Begin(self.name, self.limit)

    def _pop(self) -> Pop:
        return Pop(self.name, self.object, self.limit)
