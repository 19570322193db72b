"""Keys in Redis as the target of a sink, each with a row as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import MissingSoftware, RowRefused, SettingsError, SinkUnavailable
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.printable import show_error
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.secrets import split_user
from kstreams_py.sinks.columns import FLOATS, Columns, TakenValues, Types, check_rows, check_table, split_columns

if TYPE_CHECKING:
    import redis

_PASSING: Final = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN")
"""Beginnings of transient errors of a server: it starts, runs a script, or is a replica for now."""

_SECONDS: Final = {"socket_connect_timeout": 5.0, "socket_timeout": 10.0}


def name_server(url: str) -> str:
    """Returns the URL without user, password and query. Raises SettingsError, without them, for other URLs."""
    bare = split_user(url, "Redis", "redis://user:password@host:port/0", ("redis", "rediss", "unix"))[1]
    return re.sub(r"[?#].*", "", bare, flags=re.DOTALL)


def open_client(url: str) -> redis.Redis:
    """Returns a client that makes each request once: a retry of redis-py would exceed the limits, or act twice.

    Raises SettingsError, without the password, if `url` is not a URL of Redis, and ImportError without redis-py.
    """
    import redis  # noqa: PLC0415 an extra

    try:
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        return redis.Redis.from_url(url, retry=retry, decode_responses=False, **_SECONDS)
    except ValueError:  # its text may have the password
        raise SettingsError(f"{name_server(url)} is not a Redis URL: correct it") from None


def lasts(error: redis.RedisError) -> bool:
    """Returns whether an error lasts until somebody intervenes: a wrong password, a missing permission, a full disk.

    Any answer that is not known to be transient counts as lasting, such as a key with contents of another kind.
    """
    import redis  # noqa: PLC0415 an extra

    kinds = redis.exceptions
    if isinstance(error, kinds.ResponseError):
        return not isinstance(error, kinds.ReadOnlyError) and not str(error).startswith(_PASSING)
    passing = isinstance(error, kinds.ConnectionError | kinds.TimeoutError)
    return not passing or isinstance(error, kinds.AuthenticationError)


def refuse_cluster(name: str, info: Mapping[str, Any]) -> None:
    """Raises SettingsError if the server's own information shows that it belongs to a Redis Cluster."""
    if info.get("cluster_enabled"):
        raise SettingsError(
            f"{name} is part of a Redis Cluster, where no transaction covers keys of several nodes: name a server that "
            "is not"
        )


_log = logging.getLogger(__name__)

_TYPES: Final = (str, int, float, bool)

_BULK_BYTES: Final = 512 * 1024 * 1024
"""Redis's own `proto-max-bulk-len`: it closes the connection of a client that sends a larger value."""

_STORE: Final = """
local new = 0
for i, key in ipairs(KEYS) do
  if redis.call('SET', key, ARGV[i], 'NX') then new = new + 1 end
end
return new
"""
"""A script is one transaction, in the append-only file too, and costs the client a fifth of the time of MULTI/EXEC."""


@dataclass(frozen=True, init=False)
class Redis:
    """Keys in Redis, one for each row: `KEY:<delivery hash>` has the row as a JSON object.

    Needs redis-py: `pip install 'kstreams_py[redis]'`. A batch is one script of SET NX: all of it is stored, or
    nothing. Values are None, str, bool, int, and float other than NaN and infinity. Whether a server that dies loses
    the last rows depends on its `appendonly` and `appendfsync`; a warning names them if rows may be lost.

    - `url`: `redis://user:password@host:port/0`, `rediss://` or `unix://`. It must not be a Redis Cluster.
    - `key`: the beginning of the keys. `KEY:columns` has the names of the columns.
    - `columns`: names, or a mapping of name to Python type.

    Raises SettingsError if the URL or the columns are not possible.
    """

    url: str = field(repr=False)
    name: str
    key: str
    columns: tuple[str, ...]
    types: Types

    def __init__(self, url: str, *, key: str, columns: Columns) -> None:
        names, types = split_columns(columns, _TYPES)
        vars(self).update(url=url, name=name_server(url), key=key, columns=names, types=types)

    @property
    def evidence(self) -> Evidence:
        """The delivery hash, which is in the name of the key."""
        return Evidence.HASH

    def __str__(self) -> str:
        return f"{self.name}: keys {self.key}:*"

    def encode(self, rows: Sequence[Row], row_bytes: int = _BULK_BYTES) -> list[bytes]:
        """Returns the rows as they are stored. Raises RowRefused. `row_bytes`: the maximum bytes of a row."""
        check_rows(
            rows,
            self.columns,
            [
                TakenValues(
                    FLOATS if kind is float else frozenset({kind} if kind else _TYPES), nan=False, infinity=False
                )
                for kind in self.types
            ],
        )
        encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        encoded: list[bytes] = []
        try:
            encoded.extend(encode(dict(zip(self.columns, row.values, strict=True))).encode() for row in rows)
        except ValueError as error:  # an integer with more digits than Python converts to text
            why = f"the row has a value that JSON does not hold: {show_error(error)}"
            raise RowRefused(why, len(encoded)) from error
        if max(map(len, encoded), default=0) > row_bytes:
            index = next(index for index, row in enumerate(encoded) if len(row) > row_bytes)
            raise RowRefused(
                f"{self}: the row has {len(encoded[index]):,} bytes, and the server takes {row_bytes:,}: return a "
                "smaller one, or raise its proto-max-bulk-len",
                index,
            )
        return encoded

    def check(self, rows: Sequence[Row]) -> None:
        """See RowRules. A server takes rows of up to 512 MB, unless its proto-max-bulk-len differs."""
        self.encode(rows)

    def check_software(self) -> None:
        """See NeedsSoftware."""
        try:
            import redis  # noqa: F401, PLC0415 an extra
        except ImportError:
            raise MissingSoftware("a Redis sink needs redis-py: pip install 'kstreams_py[redis]'") from None

    def open(self, consumer: str) -> RedisConnection:  # noqa: ARG002 offsets are not stored
        """Connects, and warns of a server that may lose rows.

        Raises SinkUnavailable, SettingsError if the keys have other columns or the server belongs to a Redis Cluster,
        and MissingSoftware without redis-py.
        """
        return RedisConnection(self)

    def inspect(self) -> None:
        """See Inspectable. Logs no warnings."""
        RedisConnection(self, is_read_only=True).close()


class RedisConnection:
    """One thread's connection to Redis: see SinkConnection."""

    def __init__(self, sink: Redis, *, is_read_only: bool = False) -> None:
        """Connects. `is_read_only`: see Inspectable.inspect."""
        self._is_read_only = is_read_only
        sink.check_software()
        import redis  # noqa: PLC0415 an extra

        self._redis = redis
        self._sink = sink
        self._row_bytes = _BULK_BYTES
        self._client: redis.Redis | None = None
        with self._usable():
            pass

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:  # noqa: ARG002
        """Returns no offsets: Redis stores delivery hashes instead."""
        return {}

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:  # noqa: ARG002
        """Stores rows in one transaction; returns how many are new."""
        encoded = self._sink.encode(rows, self._row_bytes)
        with self._usable() as client:
            keys = [f"{self._sink.key}:{row.delivery_hash.hex()}" for row in rows]
            return int(client.register_script(_STORE)(keys=keys, args=encoded))

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextlib.contextmanager
    def _usable(self) -> Iterator[redis.Redis]:
        try:
            if self._client is None:
                self._client = self._open()
            yield self._client
        except self._redis.RedisError as error:
            with contextlib.suppress(self._redis.RedisError):
                self.close()
            remedy = ": start the server, or correct the URL" if " connecting to " in str(error) else ""
            raise SinkUnavailable(f"{self._sink}: {error}{remedy}", may_return=not lasts(error)) from error

    def _open(self) -> redis.Redis:
        client = open_client(self._sink.url)
        try:
            self._check(client)
        except BaseException:
            client.close()
            raise
        return client

    def _check(self, client: redis.Redis) -> None:
        """Raises SettingsError for a cluster and for other columns; warns if the server may lose rows."""
        found: dict[str, Any] = client.info()
        refuse_cluster(self._sink.name, found)
        if not self._is_read_only:
            self._warn(found)
        with contextlib.suppress(self._redis.ResponseError):  # the user may lack the permission to read settings
            limits: Any = client.config_get("proto-max-bulk-len")  # a dict of texts, or of bytes
            self._row_bytes = int(limits.get("proto-max-bulk-len", _BULK_BYTES))
        columns = self._columns(client)
        check_table(str(self._sink), self._sink.columns, columns, columns)

    def _warn(self, found: Mapping[str, Any]) -> None:
        """Warns if the server may lose rows. `found`: the server's own information."""
        if not found.get("aof_enabled"):
            _log.warning(
                "%s: appendonly is off: when the server dies it forgets rows whose offsets are committed; "
                "set appendonly yes, and appendfsync always",
                self._sink.name,
            )
        policy = found.get("maxmemory_policy", "noeviction")
        if found.get("maxmemory") and policy != "noeviction":
            _log.warning(
                "%s: maxmemory-policy %s evicts rows with their delivery hashes, so that they may be stored again; "
                "set maxmemory-policy noeviction",
                self._sink.name,
                policy,
            )

    def _columns(self, client: redis.Redis) -> list[str]:
        """Returns the columns of the stored rows; the columns of this sink if it is the first. Raises SettingsError."""
        key = f"{self._sink.key}:columns"
        if self._is_read_only and not client.exists(key):
            return list(self._sink.columns)
        if not self._is_read_only:
            client.set(key, json.dumps(self._sink.columns), nx=True)
        try:
            columns = json.loads(client.get(key))  # type: ignore[arg-type]
        except (ValueError, TypeError):  # not JSON, or deleted meanwhile
            columns = None
        except self._redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            columns = None
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise SettingsError(
                f"{self._sink}: key {key!r} has other contents, where the columns of a sink are stored: delete it, "
                "or give another key="
            )
        return columns
