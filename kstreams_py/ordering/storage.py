"""The protocol of a store: where front ends queue events, and workers share them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kstreams_py.errors import Replaced
from kstreams_py.ordering.events import Change
from kstreams_py.ordering.steps import Answer, Step

REMEMBERED_SECONDS: Final = 86_400
"""How long a store knows the uuid of a change, so that another attempt of its front end is no second change."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One process under the name of a worker; a newer one of the same name has a larger number.

    - `lanes`: how many lanes may hold something: its own, or those of the process before it, if these were more.
    """

    worker: str
    number: int
    lanes: int

    def lane(self, index: int) -> str:
        """The name of a lane."""
        return f"{self.worker}#{index}"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as the store knows it.

    - `seconds`: since it was heard of.
    - `objects`: by lane, the object in its slot.
    """

    name: str
    number: int
    seconds: float
    objects: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """An object with events.

    - `waiting`, `taken`: events in its queue, and with its owner.
    - `owner`: the lane that owns it; None if none does.
    """

    name: str
    waiting: int
    taken: int
    tokens: int
    owner: str | None


class Storage(Protocol):
    """A store of queued events. One thread uses it.

    Each change and each step is atomic, and durable when its call returns. Every call raises StoreUnavailable if the
    store does not answer, and SettingsError if it cannot be used.
    """

    def enqueue(self, changes: Sequence[Change]) -> list[bool]:
        """Stores each change in one atomic step: state, events, and one token.

        Returns which ones are new: a change with the uuid of an earlier one was stored by an earlier attempt, and is
        left out.
        """

    def data(self, name: str) -> bytes | None:
        """The state of an object; None if it has none."""

    def register(self, worker: str, lanes: int) -> Incarnation:
        """Starts a process under the name of a worker: steps of an older one are refused from now on."""

    def retire(self, incarnation: Incarnation, lanes: int) -> None:
        """Notes that lanes from this number on hold nothing and are not used any more. Raises Replaced."""

    def run(self, incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
        """Runs steps in this order, each atomic by itself. Raises Replaced if a newer incarnation exists."""

    def await_token(self, seconds: float) -> None:
        """Waits until there is a token, or for these seconds."""

    def workers(self) -> list[WorkerStatus]:
        """The workers that have ever registered, by name."""

    def objects(self, names: Collection[str] = ()) -> list[ObjectStatus]:
        """The objects with events, an owner or a token, by name; `names`: only these."""

    def close(self) -> None:
        """Closes the connection."""


def replaced(incarnation: Incarnation) -> Replaced:
    """The error of a process whose name another one has taken."""
    return Replaced(
        f"worker {incarnation.worker!r} was started again elsewhere, and this process ends: give each process a name "
        "of its own (--name)"
    )
