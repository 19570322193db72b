"""Records of others in the framework's own topics: how they are told, and named."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

from kstreams_py.errors import DecodeError
from kstreams_py.records import Message, TopicPartition


def foreign(m: Message, what: str, why: object) -> str:
    """Names a record that is not what its topic is for, as far as who has to do something: what follows is the topic's.

    - `what`: it should be.
    - `why`: it is not.
    """
    tp = TopicPartition(m.topic(), m.partition())
    return f"{tp}@{m.offset()} is no {what}: {why}: {who_wrote(tp.topic)}"


def who_wrote(topic: str) -> str:
    """What to do about a record of one of the own topics that cannot be read, by who wrote it."""
    return (
        "run the newer release of kstreams_py that wrote it; or, if another program did (`kafka-acls --list --topic "
        f"{topic}` shows who may write there)"
    )


def is_deletion(m: Message) -> bool:
    """Whether a record is a tombstone: of a record of others, whoever deletes it writes one."""
    try:
        return m.value() is None
    except DecodeError:
        return False


def parse_json(data: bytes | str) -> Any:
    """What JSON says. Raises ValueError for other bytes, and for JSON that Python's parser does not take."""
    try:
        return json.loads(data.decode() if isinstance(data, bytes) else data)  # of bytes it would take UTF-16, too
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def is_offset(value: object) -> TypeGuard[int]:
    """Whether a value of JSON can be an offset, or a number of partitions: True is not 1."""
    return type(value) is int and 0 <= value < 2**63
