"""Recognizes records of other programs in the framework's own topics, and names them."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

from kstreams_py.errors import DecodeError
from kstreams_py.printable import show_error
from kstreams_py.records import Message, TopicPartition


def foreign(m: Message, what: str, why: object) -> str:
    """Returns the beginning of a message about a record that does not belong in its topic.

    The beginning names the record, the reason, and who has to act. The caller adds what to do with the topic.

    - `what`: what the record should be, with its article.
    - `why`: the reason why the record is not that.
    """
    tp = TopicPartition(m.topic(), m.partition())
    return f"{tp}@{m.offset()} is not {what}: {why}: {who_wrote(tp.topic)}"


def who_wrote(topic: str) -> str:
    """Returns what to do about an unreadable record of one of the framework's topics, depending on who wrote it."""
    return (
        "run the newer release of kstreams_py that wrote it; or, if another program did (`kafka-acls --list --topic "
        f"{topic}` shows who may write there)"
    )


def is_deletion(m: Message) -> bool:
    """Returns whether a record is a tombstone, such as one that deletes a record of another program."""
    try:
        return m.value() is None
    except DecodeError:
        return False


def parse_json(data: bytes | str) -> Any:
    """Parses JSON. Raises ValueError for other bytes, and for JSON that Python's parser does not accept."""
    try:
        return json.loads(data.decode() if isinstance(data, bytes) else data)  # from bytes, it would also accept UTF-16
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {show_error(error)}") from None


def is_offset(value: object) -> TypeGuard[int]:
    """Returns whether a JSON value can be an offset or a number of partitions; True does not count as 1."""
    return type(value) is int and 0 <= value < 2**63
