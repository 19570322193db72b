"""The failure matrix of event ordering: each row by its number, on each store, with one to three workers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from bench.servers import Server, start_redis
from kstreams_py.ordering.events import Event, Work
from kstreams_py.ordering.redis import RedisStorage
from kstreams_py.ordering.sqlite import SQLiteStorage
from kstreams_py.ordering.steps import Answer, Begin, Complete, Drop, Find, Lane, Own, Pop, Resume, Step, Take
from kstreams_py.ordering.storage import Storage
from tests.ordering_actors import OBJECTS, Fault, World
from tests.ordering_model import Object, Slots, State, Violation

# Points of the algorithm.


def took(step: Step, answer: Answer, _: State) -> bool:
    return isinstance(step, Take) and answer is not None


def owned(step: Step, answer: Answer, _: State) -> bool:
    return isinstance(step, Own) and answer is True


def lost_to_another(step: Step, answer: Answer, _: State) -> bool:
    return isinstance(step, Own) and answer is False


def popped(step: Step, answer: Answer, _: State) -> bool:
    return isinstance(step, Pop | Begin) and answer not in {None, Work()}


def completed_with_more(step: Step, _: Answer, state: State) -> bool:
    return isinstance(step, Complete) and bool(state.objects[step.object].queued)


def completed_the_last(step: Step, _: Answer, state: State) -> bool:
    return isinstance(step, Complete) and not state.objects[step.object].queued


def released(step: Step, answer: Answer, _: State) -> bool:
    return isinstance(step, Pop) and answer == Work()


def dropped(step: Step, _: Answer, __: State) -> bool:
    return isinstance(step, Drop)


def found(step: Step, answer: Answer, _: State) -> bool:
    return isinstance(step, Find) and answer is not None


def resumed(step: Step, _: Answer, __: State) -> bool:
    return isinstance(step, Resume)


def took_owned_or_popped(step: Step, answer: Answer, state: State) -> bool:
    return any(point(step, answer, state) for point in (took, owned, popped))


# What the store has then: the slots of the lane, the object that is in them, the name of the lane.


def holds_token(slots: Slots, known: Object | None, lane: str) -> bool:
    return slots.events == () and known is not None and known.owner != lane


def holds_token_of_another(slots: Slots, known: Object | None, lane: str) -> bool:
    return slots.events == () and known is not None and known.owner not in {None, lane}


def owns(slots: Slots, known: Object | None, lane: str) -> bool:
    return slots.events == () and known is not None and known.owner == lane


def owns_with_more(slots: Slots, known: Object | None, lane: str) -> bool:
    return owns(slots, known, lane) and known is not None and known.queued != ()


def owns_nothing_more(slots: Slots, known: Object | None, lane: str) -> bool:
    return owns(slots, known, lane) and known is not None and known.queued == ()


def has_events_and_id(slots: Slots, known: Object | None, lane: str) -> bool:
    return slots.events != () and slots.first_id is not None and known is not None and known.owner == lane


def holds_nothing(slots: Slots, _: Object | None, __: str) -> bool:
    return slots == Slots()


MATRIX: Final = {
    "EF01 front end, before it is stored": Fault(queueing="before"),
    "EF02 front end, once it is stored": Fault(queueing="after"),
    "EF03 token taken": Fault([took], left=holds_token, alone=True),
    "EF04 owner": Fault([owned], left=owns, alone=True),
    "EF05 another one is the owner": Fault([lost_to_another], left=holds_token_of_another, alone=True),
    "EF06 events taken": Fault([popped], left=has_events_and_id),
    "EF07 before sending": Fault(sending="before", left=has_events_and_id),
    "EF08 while sending": Fault(sending="under way", left=has_events_and_id),
    "EF09 acknowledged": Fault(sending="acknowledged", left=has_events_and_id),
    "EF10 completed, more events": Fault([completed_with_more], left=owns_with_more),
    "EF11 completed, no more events": Fault([completed_the_last], left=owns_nothing_more),
    "EF12 released": Fault([released], left=holds_token),
    "EF13 token dropped": Fault([dropped], left=holds_nothing),
    "EF14 at each step of a start, with events": Fault([popped, found, owned, resumed], left=has_events_and_id),
    "EF14 at each step of a start, with a token": Fault([owned, found, owned, resumed], left=owns, alone=True),
    "EF15 frozen and replaced, with events": Fault([popped], how="is frozen"),
    "EF15 frozen and replaced, with a token": Fault([took], how="is frozen", alone=True),
    "EF15 frozen and replaced, having lost an object": Fault([lost_to_another], how="is frozen", alone=True),
    "EF15 frozen and replaced, completed": Fault([completed_with_more], how="is frozen"),
    "EF16 no answer, with a token": Fault([took], how="answer is lost", alone=True),
    "EF16 no answer, with events": Fault([popped], how="answer is lost"),
    "EF16 no answer, completed": Fault([completed_with_more], how="answer is lost"),
    "EF16 no answer, dropped": Fault([dropped], how="answer is lost"),
    "EF16 request lost": Fault([took_owned_or_popped], how="next request is lost"),
    "EF16 request late, of a token": Fault([dropped], how="next request is late"),
    "EF16 request late, of events": Fault([owned], how="next request is late", alone=True),
    "EF16 request late, completing": Fault([popped], how="next request is late"),
    "EF17 store dies, with events": Fault([popped], how="store dies"),
    "EF17 store dies, completed": Fault([completed_with_more], how="store dies"),
}
"""The rows of the description, each with where its fault comes."""


class SQLiteFile:
    """A store in a file: it dies with the processes that have it open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()
        SQLiteStorage(path).close()
        self._connection = self._stack.enter_context(
            closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        )

    def connect(self) -> Storage:
        return self._stack.enter_context(closing(SQLiteStorage(self._path)))

    def read(self) -> tuple[dict[str, Object], dict[str, Slots], tuple[str, ...]]:
        def select(question: str, *values: str) -> list[Any]:
            return self._connection.execute(question, values).fetchall()

        def events(of: str, value: str) -> tuple[Event, ...]:
            return tuple(
                Event.decode(data) for (data,) in select(f"SELECT data FROM events WHERE {of} ORDER BY number", value)
            )

        objects = {
            name: Object(events("lane IS NULL AND object = ?", name), owner, last_id)
            for name, owner, last_id in select("SELECT name, owner, last_id FROM objects")
        }
        slots = {
            lane: Slots(name, events("lane = ?", lane), first_id)
            for lane, name, first_id in select("SELECT name, object, first_id FROM lanes")
        }
        return objects, slots, tuple(name for (name,) in select("SELECT object FROM tokens ORDER BY number"))

    def crash(self) -> bool:
        return False

    def close(self) -> None:
        self._stack.close()


READ_ALL: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local type = redis.call('TYPE', key).ok
  if type == 'list' then found[#found + 1] = {key, redis.call('LRANGE', key, 0, -1)} end
  if type == 'string' then found[#found + 1] = {key, redis.call('GET', key)} end
end
return found
"""
"""A look after each step is one request: with one for each key, it took most of the CPU time of a cell."""


class RedisServer:
    """A store in a Redis, of which a test may have one of its own."""

    def __init__(self, server: Server) -> None:
        import redis  # noqa: PLC0415 an extra

        self._server = server
        self._url = f"redis://127.0.0.1:{server.port}/0"
        self._prefix = f"{uuid4().hex}:"
        self._stack = ExitStack()
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 3)
        self._client = redis.Redis.from_url(self._url, retry=retry)
        self._stack.callback(self._client.close)
        self._values: dict[str, Any] = {}
        """Its strings and lists at the last look."""

    def connect(self) -> Storage:
        return self._stack.enter_context(closing(RedisStorage(self._url, self._prefix)))

    def read(self) -> tuple[dict[str, Object], dict[str, Slots], tuple[str, ...]]:
        found: Any = self._client.eval(READ_ALL, 0, f"{self._prefix}*")
        keys = self._values = {key.decode().removeprefix(self._prefix): value for key, value in found}
        lanes = {key.split(":")[1] for key in keys if key.startswith("event.worker:") and "#" in key}
        objects = {
            name: Object(
                self._events(f"{name}:events"),
                (self._get(f"{name}:event.worker") or b"").decode() or None,
                self._number(f"{name}:last.event.id"),
            )
            for name in OBJECTS
            if any(key.startswith(f"{name}:") for key in keys)
        }
        slots = {}
        for lane in lanes:
            slot = f"event.worker:{lane}:"
            held = self._list(f"{slot}object")
            if len(held) > 1:
                raise Violation(f"45: the slot of {lane} has {held}")
            name = held[0].decode() if held else None
            slots[lane] = Slots(name, self._events(f"{slot}event"), self._number(f"{slot}event.id"))
        return objects, slots, tuple(name.decode() for name in self._list("objects.with.events"))

    def _get(self, key: str) -> Any:
        return self._values.get(key)

    def _number(self, key: str) -> int | None:
        found = self._get(key)
        return None if found is None else int(found)

    def _list(self, key: str) -> list[bytes]:
        """The oldest first."""
        return list(reversed(self._values.get(key, [])))

    def _events(self, key: str) -> tuple[Event, ...]:
        return tuple(map(Event.decode, self._list(key)))

    def crash(self) -> bool:
        self._server.crash()
        return True

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def durable_redis() -> Iterator[Server]:
    with closing(start_redis("--appendfsync", "always")) as server:
        yield server


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLiteFile | RedisServer]:
    found: SQLiteFile | RedisServer
    if request.param == "sqlite":
        found = SQLiteFile(tmp_path / "events.db")
    else:
        dies = MATRIX[request.node.callspec.params["row"]].how == "store dies"
        found = RedisServer(request.getfixturevalue("durable_redis" if dies else "redis_server"))
    with closing(found):
        yield found


STORES: Final = ("sqlite", "redis")


def quick_cells() -> Iterator[tuple[str, str, int, int]]:
    """Each row once, the stores by turns among the rows of one kind of fault; of a kind with one row, both.

    The rule knows no store, and test_ordering_storage.py has each step on each store. Workers and batches follow in
    turn, too: stores know neither.
    """
    kinds = dict[str, list[str]]()
    for row, fault in MATRIX.items():
        kinds.setdefault(fault.how, []).append(row)
    for rows in kinds.values():
        for number, row in enumerate(rows * 2 if len(rows) == 1 else rows):
            yield STORES[number % 2], row, 1 if MATRIX[row].alone else number // 2 % 2 + 1, number % 3 + 1


QUICK: Final = set(quick_cells())
CELLS: Final = [
    pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.long)
    for cell in product(STORES, MATRIX, (1, 2), (1, 2, 3))
    if cell[2] == 1 or not MATRIX[cell[1]].alone
]
"""The store, the row, the batch and the number of workers."""


@pytest.mark.parametrize(("store", "row", "batch", "workers"), CELLS, indirect=["store"])
def test_fault_in_any_row_breaks_no_invariant_and_loses_nothing(
    store: SQLiteFile | RedisServer, row: str, batch: int, workers: int
) -> None:
    """With one worker on two lanes, and batches of one event, the description's steps, and of two."""
    World(store, MATRIX[row], workers=workers, batch=batch, seed=workers).run()


@dataclass(frozen=True, slots=True)
class OwnsAnyway(Lane):
    """Takes events of an object that another lane owns."""

    def after(self, answer: Answer) -> Lane:
        return Lane.after(self, answer or isinstance(self.step, Own))


@dataclass(frozen=True, slots=True)
class CompletesFirst(Lane):
    """Completes events before it sends them."""

    def after(self, answer: Answer) -> Lane:
        if isinstance(self.step, Complete):
            return replace(self, step=None)
        after = Lane.after(self, answer)
        return Lane.sent(after) if after.step is None else after

    def sent(self) -> Lane:
        return replace(self, step=self._pop(), work=Work())


@dataclass(frozen=True, slots=True)
class Forgets(Lane):
    """Does not look for what the process before it held."""

    @classmethod
    def start(cls, name: str, limit: int) -> Lane:
        return cls(name, limit, Take(name))


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize(
    ("row", "rule", "message"),
    [
        ("EF05 another one is the owner", OwnsAnyway, "43: a lane has taken events of ., which it does not own"),
        ("EF07 before sending", CompletesFirst, "40: an event of . is lost"),
        ("EF09 acknowledged", Forgets, "4[1-5]: "),
    ],
    ids=["no ownership", "completion before sending", "no restart"],
)
def test_rule_that_is_left_out_is_found_on_a_real_store(
    store: SQLiteFile | RedisServer, row: str, rule: type[Lane], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstreams_py.ordering.worker.Lane", rule)
    with pytest.raises(Violation, match=message):
        World(store, MATRIX[row], workers=2, batch=1, seed=2).run()
