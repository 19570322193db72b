"""Finds records that cannot be read: header names that are not text, values beyond a limit, whole batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import length_hint
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.records import TopicPartition, Unreadable, too_large, undecompressed, with_bad_headers

_HEADERS: Final = ck.Message.headers

LastOfBatch = Callable[[TopicPartition, int], int]
"""Returns the last offset of the batch at a partition and offset."""


def skip_batch(client: ck.Consumer, m: Any, last_of_batch: LastOfBatch) -> Unreadable:
    """Returns a record in place of a batch that cannot be decompressed, and moves the client past the batch.

    `m`: the client's error event for the batch. librdkafka refuses a batch larger than receive.message.max.bytes, and
    requests it again forever.
    """
    partition, first = TopicPartition(m.topic(), m.partition()), m.offset()
    last = last_of_batch(partition, first)
    client.seek(ck.TopicPartition(*partition, last + 1))
    return undecompressed(partition, first, last, m.error().str())


def replace_unreadable(messages: list[Any], value_bytes_max: int | None = None) -> list[Any]:
    """Returns the records, with an Unreadable in place of each that cannot be read.

    This function must see each record before anything else asks for headers. If a name is not UTF-8, the first call of
    `Message.headers()` raises. The next one returns a name that is not a Python object, and the process dies (SIGSEGV;
    confluent-kafka 2.16). So the headers are replaced after the first call.
    """
    rest = iter(messages)
    while True:
        try:
            deque(map(_HEADERS, rest), maxlen=0)  # at the speed of C: each record of a consumer passes here
        except SystemError as error:
            at = len(messages) - length_hint(rest) - 1
            messages[at].set_headers([])
            messages[at] = with_bad_headers(messages[at], error.__cause__ or error)
        else:
            break
    # check the sum first: it costs less than a comparison for each record, and hardly ever exceeds the limit
    if value_bytes_max is not None and sum(map(len, messages)) > value_bytes_max:
        return [too_large(m, value_bytes_max) if len(m) > value_bytes_max else m for m in messages]
    return messages
