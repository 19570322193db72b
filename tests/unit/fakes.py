"""Fakes that the unit tests share: a record as a client returns it, the client's exceptions and its metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck

from kstreams_py.records import Headers


class Read:
    """A `records.Message`, read from `topic` at `offset`."""

    def __init__(
        self,
        topic: str,
        offset: int,
        value: bytes | None = b"v",
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> None:
        self._place = topic, partition, offset
        self._content = key, value, None if headers is None else list(headers)
        self._timestamp = timestamp

    def __repr__(self) -> str:
        return f"Read{self._place}"

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def key(self) -> bytes | None:
        return self._content[0]

    def value(self) -> bytes | None:
        return self._content[1]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._content[2]

    def timestamp(self) -> tuple[int, int]:
        """The client's timestamp type and value; (0, -1) without a timestamp."""
        return (0, -1) if self._timestamp is None else (1, self._timestamp)


def client_error(code: int, **flags: bool) -> ck.KafkaException:
    return ck.KafkaException(ck.KafkaError(code, None, **flags))


def metadata(topic: str, code: int | None) -> Any:
    """The cluster's metadata of one topic, with the code of its error."""
    error = None if code is None else ck.KafkaError(code)
    return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions={})})


def raise_error(error: Exception) -> list[Any]:
    raise error
