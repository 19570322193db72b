"""The protocol of a store: where front ends queue events, and workers share them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kstreams_py.errors import InputLost, KStreamsError, Replaced, StoreUnavailable
from kstreams_py.ordering.events import Change
from kstreams_py.ordering.steps import Answer, Step

REMEMBERED_SECONDS: Final = 86_400
"""How long a store knows the uuid of a change, so that another attempt of its front end is no second change."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One process under the name of a worker, since it has registered; a newer one of the name has a larger number.

    - `process`: names the process: another one of it has the same.
    - `lanes`: how many lanes may hold something: its own, or those of the process before it, if these were more.
    """

    worker: str
    number: int
    lanes: int
    process: str = ""

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
    store does not answer, and SettingsError if it cannot be used. What had no answer may have been done, or be done
    yet: a worker registers again, by which steps that come late are refused, and asks what its lanes hold.
    """

    def enqueue(self, changes: Sequence[Change]) -> list[bool]:
        """Stores each change in one atomic step: state, events, and one token.

        Returns which ones are new: a change with the uuid of an earlier one was stored by an earlier attempt, and is
        left out.
        """

    def data(self, name: str) -> bytes | None:
        """The state of an object; None if it has none."""

    def register(self, worker: str, lanes: int, process: str, *, again: bool = False) -> Incarnation:
        """Starts a process under the name of a worker: steps of older incarnations are refused from now on.

        - `process`: names it; each attempt has the same.
        - `again`: the process had registered. Raises Replaced if another one has done so since, InputLost if the store
          has forgotten it.
        """

    def retire(self, incarnation: Incarnation, lanes: int) -> None:
        """Notes that lanes from this number on hold nothing and are not used any more. Raises as `run`."""

    def run(self, incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
        """Runs steps in this order, each atomic by itself.

        Raises Replaced if another process has registered since, StoreUnavailable if an attempt of this one came late,
        InputLost if the store has forgotten it.
        """

    def note_topic(self, topic: str, partitions: int, *, change: bool) -> tuple[str, int]:
        """Notes the topic of the events and how many partitions it has, unless one is noted; returns what is noted.

        `change`: it is noted in any case, in place of another one.
        """

    def await_token(self, seconds: float) -> None:
        """Waits until there is a token, or for these seconds."""

    def workers(self) -> list[WorkerStatus]:
        """The workers that have ever registered, by name."""

    def objects(self, names: Collection[str] = ()) -> list[ObjectStatus]:
        """The objects with events, an owner or a token, by name; `names`: only these."""

    def close(self) -> None:
        """Closes the connection."""


def refused(store: str, worker: str, process: str, known: str | None) -> KStreamsError:
    """The error of a process whose incarnation is not the newest of its worker.

    `known`: the process that the store knows; None if it knows none.
    """
    if known is None:
        return InputLost(
            f"{store} has forgotten worker {worker!r}, and maybe events, and the ids that were given: it was emptied, "
            "or keeps too little on its disk: decide what is lost; consumers drop events with ids that they have seen"
        )
    if known == process:
        return StoreUnavailable(f"{store}: an earlier attempt of this process to register came late", may_return=True)
    return Replaced(
        f"worker {worker!r} was started again elsewhere, and this process ends: give each process a name of its own "
        "(--name)"
    )
