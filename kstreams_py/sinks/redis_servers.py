"""Redis servers: connections without hidden retries, and the servers that are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import SettingsError
from kstreams_py.secrets import split_user

if TYPE_CHECKING:
    import redis

_PASSING: Final = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN")
"""Beginnings of transient errors of a server: it starts, runs a script, or is a replica for now."""

_SECONDS: Final = {"socket_connect_timeout": 5.0, "socket_timeout": 10.0}


def name_server(url: str) -> str:
    """Returns the URL without user, password and query. Raises SettingsError, without them, if it is not Redis's."""
    bare = split_user(url, "Redis", "redis://user:password@host:port/0", ("redis", "rediss", "unix"))[1]
    return re.sub(r"[?#].*", "", bare, flags=re.DOTALL)


def open_client(url: str) -> redis.Redis:
    """Returns a client that makes each request once: a retry of redis-py would exceed the limits, or act twice.

    Raises SettingsError, without the password, if it is not a URL of Redis, and ImportError without redis-py.
    """
    import redis  # noqa: PLC0415 an extra

    try:
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        return redis.Redis.from_url(url, retry=retry, decode_responses=False, **_SECONDS)
    except ValueError:  # its text may have the password
        raise SettingsError(f"{name_server(url)} is not a Redis URL: correct it") from None


def lasts(error: redis.RedisError) -> bool:
    """Whether another attempt fails as well, until somebody intervenes: a wrong password, a missing right, a full disk.

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
