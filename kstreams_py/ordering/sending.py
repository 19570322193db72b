"""Sends ordered events to one topic, with the object as the key, and keeps each object in one partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from kstreams_py.errors import BrokerUnavailable, ClientError, Refused, Retriable, TopicError
from kstreams_py.kafka.contracts import Cluster, Output, Producer, ProducerMode, TopicInfo
from kstreams_py.kafka.partitioner import partition_of
from kstreams_py.log_fields import answers, away
from kstreams_py.ordering.events import OrderedEvent, headers_of
from kstreams_py.ordering.storage import Storage

IDEMPOTENT: Final = ProducerMode(transactional=False, acks=-1, may_repeat=True)

ATTEMPTS_MAX: Final = 10
"""How often a send is tried before the worker ends; its next start sends the events again."""

WAIT_MAX: Final = 5.0
"""The longest wait between two attempts, in seconds."""


class KafkaSender:
    """A Sender to one topic, through an idempotent producer. It does not use partitions that are added later.

    After a failure, a new producer writes again what the old one may have written; consumers drop copies by their id.

    - `name`: the name of the worker.
    - `sleep`: waits for a number of seconds.
    """

    def __init__(self, cluster: Cluster, topic: TopicInfo, name: str, sleep: Callable[[float], None]) -> None:
        self._cluster = cluster
        self.topic = topic
        self._name = name
        self._sleep = sleep
        self._producer: Producer | None = None

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        """Sends events in this order; they are acknowledged when this returns.

        Raises BrokerUnavailable after ATTEMPTS_MAX, and RecordRefused for an event that the topic will never take.
        """
        keys = {name: name.encode() for name, _ in events}
        partitions = {name: partition_of(key, self.topic.partitions) for name, key in keys.items()}
        outputs: list[Output] = [
            (self.topic.name, each.event.value, keys[name], partitions[name], None, None, 0, headers_of(each))
            for name, each in events
        ]
        left = list(outputs)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                self._write(left)
            except Refused as error:
                self.close()
                raise error.mistake from None
            except ClientError as error:
                if not isinstance(error, Retriable):  # otherwise the client still has the queue, and sends it
                    self.close()
                    left = list(outputs)
                if attempt == ATTEMPTS_MAX:
                    raise BrokerUnavailable(
                        f"ordering worker {self._name}: {len(outputs)} events of {len({name for name, _ in events})} "
                        f"objects not acknowledged after {attempt} attempts, last error: {error}: repair the cluster, "
                        "then start the worker again: it sends them again"
                    ) from error
                logger.warning("ordering worker %s: %s; trying again", self._name, error, extra=away(self._name))
                self._sleep(min(0.1 * 2**attempt, WAIT_MAX))
            else:
                if attempt > 1:
                    text = "ordering worker %s: the events are acknowledged"
                    logger.info(text, self._name, extra=answers(self._name))
                return

    def _write(self, outputs: list[Output]) -> None:
        """Queues outputs and removes them from the list. Waits until all queued outputs are acknowledged."""
        if self._producer is None:
            self._producer = self._cluster.producer(IDEMPOTENT, self._name)
        self._producer.write(outputs)
        self._producer.flush()

    def close(self) -> None:
        """Ends the producer immediately."""
        if self._producer is not None:
            self._producer.drop()
            self._producer = None


logger = logging.getLogger(__name__)


def check_topic(
    storage: Storage, topic: str, partitions: int, *, accepts_topic: bool = False, accepts_partitions: bool = False
) -> None:
    """Notes in a store which topic its events are sent to.

    - `accepts_topic`: accept a topic that differs from the one before.
    - `accepts_partitions`: accept another number of partitions.

    Raises TopicError for a change that is not accepted. Consumers of one topic would wait for events that are in the
    other one. With another number of partitions, a group may read a later event of an object before an earlier one.
    """
    known, before = storage.note_topic(topic, partitions, change=False)
    if (known, before) == (topic, partitions):
        return
    if known != topic:
        text = f"events of {storage} are sent to topic {known!r}, and not to {topic!r}"
        if not accepts_topic:
            raise TopicError(
                f"{text}: an object's events would be in two topics, and its consumers would wait for those in the "
                f"other one: name --topic {known}; or stop all workers, let the consumers read what was sent, then "
                "start with --accept-topic (a new consumer begins there with start='accept_first')"
            )
        what = "the next ones are sent to the other topic"
    else:
        text = f"topic {topic!r} has {partitions} partitions, but had {before} when events of {storage} were sent to it"
        if not accepts_partitions:
            raise TopicError(
                f"{text}: objects move to other partitions, where a consumer may read a later event before an earlier "
                "one: stop all workers, let the consumers read what was sent, then start with --accept-partitions"
            )
        what = "objects move to other partitions"
    storage.note_topic(topic, partitions, change=True)
    logger.warning("%s: %s, as was asked for", text, what)
