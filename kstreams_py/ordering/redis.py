"""A store of queued events in Redis."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from kstreams_py.errors import DecodeError, KStreamsError, MissingSoftware, StoreUnavailable
from kstreams_py.ordering.events import Change, Event, Work
from kstreams_py.ordering.steps import (
    TOKENS_MAX,
    Answer,
    Begin,
    BegunObject,
    Complete,
    Drop,
    Find,
    Own,
    Pop,
    Resume,
    Return,
    Step,
    Take,
)
from kstreams_py.ordering.storage import REMEMBERED_SECONDS, Incarnation, ObjectStatus, WorkerStatus, refused
from kstreams_py.sinks.redis import lasts, name_server, open_client, refuse_cluster

_log = logging.getLogger(__name__)

_BLOCK_SECONDS: Final = 5.0
"""The longest wait for a token in one request: well below the time limit of a request."""

_ENQUEUE: Final = """
local change, data, events, tokens = unpack(KEYS)
local seconds, name, state, value = unpack(ARGV)
if not redis.call('SET', change, 1, 'NX', 'EX', seconds) then return 0 end
if state == '1' then redis.call('SET', data, value) end
for i = 5, #ARGV do redis.call('LPUSH', events, ARGV[i]) end
redis.call('LPUSH', tokens, name)
return 1
"""

_REGISTER: Final = """
local worker, workers = unpack(KEYS)
local name, lanes, process, again = unpack(ARGV)
local known = redis.call('HGET', worker, 'process')
if again == '1' and known ~= process then return known or '' end
redis.call('SADD', workers, name)
local used = math.max(tonumber(lanes), tonumber(redis.call('HGET', worker, 'lanes') or '0'))
local number = redis.call('HINCRBY', worker, 'number', 1)
redis.call('HSET', worker, 'lanes', used, 'heard', redis.call('TIME')[1], 'process', process)
return {number, used}
"""

_RETIRE: Final = """
if redis.call('HGET', KEYS[1], 'number') ~= ARGV[1] then return redis.call('HGET', KEYS[1], 'process') or '' end
redis.call('HSET', KEYS[1], 'lanes', ARGV[2])
return 1
"""

_NOTE_TOPIC: Final = """
local topic, partitions, change = unpack(ARGV)
local known = redis.call('HGETALL', KEYS[1])
if #known > 0 and change == '0' then return {known[1], known[2]} end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], topic, partitions)
return {topic, partitions}
"""

_RUN: Final = """
local worker, object, event, id, tokens, next_id, events, last, owner = unpack(KEYS)
local number, lane, prefix, tokens_max = unpack(ARGV)
local known = redis.call('HMGET', worker, 'number', 'heard')
if known[1] ~= number then return redis.call('HGET', worker, 'process') or '' end
local now = redis.call('TIME')[1]
if now ~= known[2] then redis.call('HSET', worker, 'heard', now) end

local function work()
  local found = redis.call('LRANGE', event, 0, -1)
  if #found == 0 then return {} end
  return {redis.call('GET', id), redis.call('GET', last) or '', found}
end

local steps = {}
function steps.find() return redis.call('LINDEX', object, 0) end
function steps.take() return redis.call('LMOVE', tokens, object, 'RIGHT', 'LEFT') end
function steps.own()
  redis.call('SET', owner, lane, 'NX')
  return redis.call('GET', owner) == lane and 1 or 0
end
function steps.resume() return work() end
function steps.pop(limit)
  local moved = 0
  while moved < tonumber(limit) and redis.call('LMOVE', events, event, 'RIGHT', 'LEFT') do moved = moved + 1 end
  if moved == 0 then
    redis.call('DEL', owner)
    return {}
  end
  redis.call('SET', id, string.format('%.0f', redis.call('INCRBY', next_id, moved) - moved + 1))
  return work()
end
function steps.complete(newest)
  redis.call('DEL', event, id)
  redis.call('SET', last, newest)
end
function steps.drop() redis.call('RPOP', object) end
steps['return'] = function()
  if redis.call('GET', owner) == lane then redis.call('DEL', owner) end
  redis.call('LMOVE', object, tokens, 'RIGHT', 'RIGHT')
end
function steps.begin(limit)
  for _ = 1, tonumber(tokens_max) do
    local name = redis.call('LINDEX', tokens, -1)
    if not name then return false end
    local key = prefix .. name
    events, last, owner = key .. ':events', key .. ':last.event.id', key .. ':event.worker'
    if redis.call('EXISTS', owner) == 0 and redis.call('EXISTS', events) == 1 then
      redis.call('LMOVE', tokens, object, 'RIGHT', 'LEFT')
      redis.call('SET', owner, lane)
      return {name, unpack(steps.pop(limit))}
    end
    redis.call('RPOP', tokens)
  end
end

local answers = {}
for i = 5, #ARGV, 2 do answers[#answers + 1] = steps[ARGV[i]](ARGV[i + 1]) or false end
return answers
"""
"""Runs the steps of one lane, one after the other: ARGV has a name and an argument for each."""


class RedisStorage:
    """A Storage in Redis, with the keys of the algorithm's description, each with a prefix.

    Needs redis-py: `pip install 'kstreams_py[redis]'`. Each change is one script, and so are the steps of one lane in
    one `run`. A script is one transaction, also in the append-only file. The server's `appendonly` and `appendfsync`
    decide which of the newest steps are lost when it dies; a warning names these settings if they keep too little.

    - `url`: `redis://user:password@host:port/0`, `rediss://` or `unix://`; not a Redis Cluster.
    - `prefix`: the beginning of each key.

    Raises SettingsError for an invalid URL or a Redis Cluster, StoreUnavailable, and MissingSoftware without redis-py.
    """

    def __init__(self, url: str, prefix: str = "") -> None:
        self._name = name_server(url)
        try:
            import redis  # noqa: PLC0415 an extra
        except ImportError:
            raise MissingSoftware("a store in Redis needs redis-py: pip install 'kstreams_py[redis]'") from None
        self._redis, self._prefix = redis, prefix
        self._client = open_client(url)
        try:
            with self._usable():
                self._check()
        except BaseException:
            self._client.close()
            raise

    def __str__(self) -> str:
        return f"the store {self._name}"

    def close(self) -> None:
        self._client.close()

    # For front ends.

    def enqueue(self, changes: Sequence[Change]) -> list[bool]:
        calls = []
        for each in changes:
            keys = [self._prefix + f"event.change:{each.uuid.hex()}", self._key(each.object, "data")]
            keys += [self._key(each.object, "events"), self._tokens]
            data: list[Any] = [0, b""] if each.data is None else [1, each.data]
            events = [event.encode() for event in each.events]
            calls.append((keys, [REMEMBERED_SECONDS, each.object, *data, *events]))
        return [bool(stored) for stored in self._evaluate(_ENQUEUE, calls)]

    def data(self, name: str) -> bytes | None:
        with self._usable():
            found: Any = self._client.get(self._key(name, "data"))
        return None if found is None else bytes(found)

    # For workers.

    def register(self, worker: str, lanes: int, process: str, *, again: bool = False) -> Incarnation:
        keys = [self._worker(worker), self._prefix + "event.workers"]
        (found,) = self._evaluate(_REGISTER, [(keys, [worker, lanes, process, int(again)])])
        if isinstance(found, bytes):
            raise self._refused(worker, process, found)
        number, used = found
        return Incarnation(worker, number, used, process)

    def retire(self, incarnation: Incarnation, lanes: int) -> None:
        keys = [self._worker(incarnation.worker)]
        (found,) = self._evaluate(_RETIRE, [(keys, [incarnation.number, lanes])])
        if isinstance(found, bytes):
            raise self._refused(incarnation.worker, incarnation.process, found)

    def run(self, incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
        groups: dict[str, list[Step]] = {}
        for step in steps:
            groups.setdefault(step.lane, []).append(step)
        calls = [
            (self._keys(incarnation.worker, group), self._arguments(incarnation, group)) for group in groups.values()
        ]
        found = self._evaluate(_RUN, calls)
        for each in found:
            if isinstance(each, bytes):
                raise self._refused(incarnation.worker, incarnation.process, each)
        answers = {lane: iter(each) for lane, each in zip(groups, found, strict=True)}
        with self._usable():
            return [_answer(step, next(answers[step.lane])) for step in steps]

    def note_topic(self, topic: str, partitions: int, *, change: bool) -> tuple[str, int]:
        call = ([self._prefix + "event.topics"], [topic, partitions, int(change)])
        ((name, number),) = self._evaluate(_NOTE_TOPIC, [call])
        with self._usable():
            return name.decode(), int(number)

    def await_token(self, seconds: float) -> None:
        with self._usable():
            # waits for a token and does not take it: only a step that checks the incarnation may take it
            client: Any = self._client  # its types lack fractions of seconds
            limit = min(max(seconds, 0.001), _BLOCK_SECONDS)  # 0 would wait without end
            client.blmove(self._tokens, self._tokens, limit, "RIGHT", "RIGHT")

    # For operators.

    def workers(self) -> list[WorkerStatus]:
        found = []
        with self._usable():
            now = self._client.time()[0]
            known: Any = self._client.smembers(self._prefix + "event.workers")
            for name in sorted(each.decode() for each in known):
                fields: Any = self._client.hgetall(self._worker(name))
                number, lanes = int(fields[b"number"]), int(fields[b"lanes"])
                incarnation = Incarnation(name, number, lanes)
                held = {}
                for lane in map(incarnation.lane, range(lanes)):
                    slot: Any = self._client.lindex(self._slot(lane, "object"), 0)
                    if slot is not None:
                        held[lane] = slot.decode()
                found.append(WorkerStatus(name, number, float(now - int(fields[b"heard"])), held))
        return found

    def objects(self, names: Collection[str] = ()) -> list[ObjectStatus]:
        with self._usable():
            tokens: dict[str, int] = {}
            queued: Any = self._client.lrange(self._tokens, 0, -1)
            for name in map(bytes.decode, queued):
                tokens[name] = tokens.get(name, 0) + 1
            found = set(tokens) | self._scan("events") | self._scan("event.worker")
            chosen = sorted(found & set(names) if names else found)
            return [self._object(name, tokens.get(name, 0)) for name in chosen]

    def _object(self, name: str, tokens: int) -> ObjectStatus:
        owner: Any = self._client.get(self._key(name, "event.worker"))
        lane: str | None = None if owner is None else owner.decode()
        waiting = int(self._client.llen(self._key(name, "events")))
        taken = 0 if lane is None else int(self._client.llen(self._slot(lane, "event")))
        return ObjectStatus(name, waiting, taken, tokens, lane)

    def _scan(self, end: str) -> set[str]:
        """Returns the objects that have a key with this ending."""
        pattern = "".join(f"\\{c}" if c in "*?[]\\^" else c for c in self._prefix) + f"*:{end}"
        return {key.decode()[len(self._prefix) : -len(end) - 1] for key in self._client.scan_iter(pattern, count=1_000)}

    # Keys.

    @property
    def _tokens(self) -> str:
        return self._prefix + "objects.with.events"

    def _worker(self, name: str) -> str:
        return self._prefix + f"event.worker:{name}"

    def _slot(self, lane: str, end: str) -> str:
        return self._prefix + f"event.worker:{lane}:{end}"

    def _key(self, name: str, end: str) -> str:
        return self._prefix + f"{name}:{end}"

    def _keys(self, worker: str, group: Sequence[Step]) -> list[str]:
        lane = group[0].lane
        keys = [self._worker(worker), *(self._slot(lane, end) for end in ("object", "event", "event.id"))]
        keys += [self._tokens, self._prefix + "next.event.id"]
        named = {step.object for step in group if not isinstance(step, Find | Take | Drop | Begin)}
        assert len(named) <= 1, f"{lane} has one object at a time: {group}"
        for name in named:
            keys += [self._key(name, end) for end in ("events", "last.event.id", "event.worker")]
        return keys

    def _arguments(self, incarnation: Incarnation, group: Sequence[Step]) -> list[Any]:
        arguments: list[Any] = [incarnation.number, group[0].lane, self._prefix, TOKENS_MAX]
        for step in group:
            arguments += [_NAMES[type(step)], _argument(step)]
        return arguments

    # The server.

    def _evaluate(self, script: str, calls: Sequence[tuple[list[str], list[Any]]]) -> list[Any]:
        """Runs a script once for each of these calls, in one request if the server knows it; returns the answers."""
        found: dict[int, Any] = {}
        digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        with self._usable():
            while left := [number for number in range(len(calls)) if number not in found]:
                pipeline = self._client.pipeline(transaction=False)
                for number in left:
                    keys, arguments = calls[number]
                    pipeline.evalsha(digest, len(keys), *keys, *arguments)
                answers = dict(zip(left, pipeline.execute(raise_on_error=False), strict=True))
                unknown = self._redis.exceptions.NoScriptError
                found |= {number: each for number, each in answers.items() if not isinstance(each, unknown)}
                if len(found) < len(calls):  # the server does not know the script yet, or has flushed it
                    self._client.script_load(script)
            for each in found.values():
                if isinstance(each, Exception):
                    raise each
        return [found[number] for number in range(len(calls))]

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Raises StoreUnavailable, with the remedy, for errors of the server and for keys of other programs."""
        foreign = f"delete others' keys that begin with {self._prefix!r}, or choose another prefix"
        try:
            yield
        except self._redis.RedisError as error:
            answers = type(error) is self._redis.ResponseError and lasts(error)
            remedy = f"correct its settings, or {foreign}" if answers else "start the server, or correct its settings"
            text = f"{self}: {str(error).rstrip('.')}: {remedy}"
            raise StoreUnavailable(text, may_return=not lasts(error)) from error
        except (DecodeError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise StoreUnavailable(f"{self} has contents that no store has written ({reason}): {foreign}") from error

    def _refused(self, worker: str, process: str, known: bytes) -> KStreamsError:
        return refused(str(self), worker, process, known.decode(errors="replace") or None)

    def _check(self) -> None:
        """Raises SettingsError for a Redis Cluster. Warns if the server may lose steps."""
        found: dict[str, Any] = self._client.info()
        refuse_cluster(self._name, found)
        fsync = "unknown"
        with contextlib.suppress(self._redis.RedisError):  # the user may lack the right to read settings
            fsync = str(dict(self._client.config_get("appendfsync")).get("appendfsync", fsync))
        if not found.get("aof_enabled") or fsync != "always":
            kept = f"appendfsync is {fsync}" if found.get("aof_enabled") else "appendonly is off"
            _log.warning(
                "%s: %s: if the server dies it forgets its newest steps, and events are lost or sent with other ids; "
                "set appendonly yes, and appendfsync always", self._name, kept,
            )  # fmt: skip
        policy = found.get("maxmemory_policy", "noeviction")
        if found.get("maxmemory") and policy != "noeviction":
            _log.warning(
                "%s: maxmemory-policy %s evicts keys, so that events are lost; set maxmemory-policy noeviction",
                self._name, policy,
            )  # fmt: skip


_NAMES: Final[dict[type, str]] = {
    each: each.__name__.lower() for each in (Find, Take, Own, Resume, Pop, Complete, Drop, Return, Begin)
}
"""The name of each step's function in the script."""


def _argument(step: Step) -> int:
    match step:
        case Pop(limit=limit) | Begin(limit=limit):
            return limit
        case Complete(newest_id=newest):
            return newest
        case _:
            return 0


def _answer(step: Step, found: Any) -> Answer:
    match step:
        case Find() | Take():
            return None if found is None else str(found, "utf-8")
        case Own():
            return bool(found)
        case Begin():
            return None if found is None else BegunObject(str(found[0], "utf-8"), _work(*found[1:]))
        case Resume() | Pop() if found:
            return _work(*found)
        case Resume() | Pop():
            return Work()
        case _:
            return None


def _work(first_id: bytes, last_id: bytes, events: Sequence[bytes]) -> Work:
    taken = tuple(Event.decode(each) for each in reversed(events))  # the oldest event is the last of the list
    return Work(taken, int(first_id), int(last_id) if last_id else None)
