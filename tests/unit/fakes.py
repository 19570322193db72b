"""What the unit tests share: a record as a client hands it out, and what a client says of failures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck

from kstreams_py.record import Headers


class Read:
    """A record.Message that was read from `topic` at `offset`."""

    def __init__(
        self,
        topic: str,
        offset: int,
        value: bytes | None = b"v",
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = 0,
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
        """As the client has it: type 0 and -1 where the record has none."""
        return (0, -1) if self._timestamp is None else (1, self._timestamp)


def failing(code: int, **flags: bool) -> ck.KafkaException:
    return ck.KafkaException(ck.KafkaError(code, None, **flags))


def metadata(topic: str, code: int | None) -> Any:
    """The cluster's metadata of one topic."""
    error = None if code is None else ck.KafkaError(code)
    return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions={})})


def raising(error: Exception) -> list[Any]:
    raise error
