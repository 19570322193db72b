"""The protocol of a store: where front ends queue events, and workers share them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kstreams_py.errors import InputLost, KStreamsError, Replaced, StoreUnavailable
from kstreams_py.ordering.events import Change
from kstreams_py.ordering.steps import Answer, Step

REMEMBERED_SECONDS: Final = 86_400
"""How long a store remembers the uuid of a change, so that another attempt of the front end does not store it again."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One registration of a process under the name of a worker. Later ones have larger numbers.

    - `process`: identifies the process; the same in all its registrations.
    - `lanes`: how many lanes may hold something: the process's own, or its predecessor's if those are more.
    """

    worker: str
    number: int
    lanes: int
    process: str = ""

    def lane(self, index: int) -> str:
        """Returns the name of a lane."""
        return f"{self.worker}#{index}"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as the store knows it.

    - `seconds`: seconds since its last sign of life.
    - `objects`: the object in the slot of each lane.
    """

    name: str
    number: int
    seconds: float
    objects: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """An object with events.

    - `waiting`, `taken`: how many events are in its queue, and with its owner.
    - `owner`: the lane that owns it; None if none does.
    """

    name: str
    waiting: int
    taken: int
    tokens: int
    owner: str | None


class Storage(Protocol):
    """A store of queued events. Only one thread at a time may use it.

    Each change and each step is atomic, and durable when its call returns. Every call raises StoreUnavailable if the
    store does not answer, and SettingsError if it cannot be used. A step without an answer may have been carried out,
    or may be carried out later. The worker then registers again, so that late steps are refused, and asks what its
    lanes hold.
    """

    def enqueue(self, changes: Sequence[Change]) -> list[bool]:
        """Stores each change in one atomic step: state, events, and one token.

        Returns whether each change is new. A change with the uuid of an earlier one was stored by an earlier attempt,
        and is not stored again.
        """

    def data(self, name: str) -> bytes | None:
        """Returns the state of an object; None if it has none."""

    def register(self, worker: str, lanes: int, process: str, *, again: bool = False) -> Incarnation:
        """Registers a process under the name of a worker. From now on, steps of older incarnations are refused.

        - `process`: identifies the process; the same at each attempt.
        - `again`: the process has registered before. Then this raises Replaced if another process has registered
          since, and InputLost if the store has forgotten the worker.
        """

    def retire(self, incarnation: Incarnation, lanes: int) -> None:
        """Notes that the lanes from this number on hold nothing and are no longer used. Raises the same as `run`."""

    def run(self, incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
        """Runs steps in this order; each is atomic by itself.

        Raises Replaced if another process has registered since, StoreUnavailable if an attempt of this process to
        register came late, and InputLost if the store has forgotten the worker.
        """

    def note_topic(self, topic: str, partitions: int, *, change: bool) -> tuple[str, int]:
        """Notes the topic of the events and its number of partitions, unless a topic is noted already.

        - `change`: replace a topic that is noted already.

        Returns the topic and the number that are noted now.
        """

    def await_token(self, seconds: float) -> None:
        """Waits for a token, for at most this many seconds."""

    def workers(self) -> list[WorkerStatus]:
        """Returns all workers that have ever registered, by name."""

    def objects(self, names: Collection[str] = ()) -> list[ObjectStatus]:
        """Returns the objects with events, an owner or a token, by name. `names`: only these objects."""

    def close(self) -> None:
        """Closes the connection."""


def refused(store: str, worker: str, process: str, known: str | None) -> KStreamsError:
    """Returns the error for a process whose incarnation is not the newest of its worker.

    - `known`: the process that the store knows; None if it knows none.
    """
    if known is None:
        return InputLost(
            f"{store} has forgotten worker {worker!r}, and perhaps events and assigned ids: it was emptied, "
            "or keeps too little on its disk: decide what is lost; consumers drop events with ids that they have seen"
        )
    if known == process:
        return StoreUnavailable(f"{store}: this process's earlier attempt to register came late", may_return=True)
    return Replaced(
        f"worker {worker!r} was started again elsewhere, and this process ends: give each process a name of its own "
        "(--name)"
    )
