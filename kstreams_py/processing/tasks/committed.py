"""Reads the committed offsets of a group, and logs which transaction blocks reading them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Final

from kstreams_py.errors import KStreamsError, Retriable
from kstreams_py.kafka.contracts import Consumer
from kstreams_py.kafka.transactions import find_command_at
from kstreams_py.log_fields import repeated
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

PINNED_SECONDS: Final = 30.0
"""Seconds that committed offsets may be unreadable before a warning names the transactions that hold them."""


class CommittedOffsets:
    """The committed offsets of one worker's group."""

    def __init__(self, group: str, name: str, consumer: Consumer, environment: Environment) -> None:
        """`name` is the name of the worker, for the log."""
        self._group = group
        self._name = name
        self._consumer = consumer
        self._cluster = environment.cluster
        self._clock = environment.clock
        self._find = find_command_at(environment.settings.bootstrap_servers)
        self._unread_since: float | None = None

    def read(self, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the committed offset of each partition that has one.

        Raises Retriable while a transaction holds one of them; after PINNED_SECONDS, logs which transaction.
        """
        if not partitions:
            return {}
        try:
            positions = self._consumer.committed(partitions)
        except Retriable:
            now = self._clock()
            self._unread_since = now if self._unread_since is None else self._unread_since
            if now - self._unread_since >= PINNED_SECONDS:
                self._unread_since = now
                self._name_what_holds(partitions)
            raise
        self._unread_since = None
        return positions

    def _name_what_holds(self, partitions: Collection[TopicPartition]) -> None:
        try:
            held = self._cluster.pending(self._group, partitions).describe(time.time(), self._find)
        except KStreamsError as error:
            held = f"which transaction holds them is not known: {error}"
        logger.warning(
            "%s: committed offsets have not been readable for %g s: %s", self._name, PINNED_SECONDS, held,
            extra=repeated(f"times that committed offsets of {self._name} are not readable", held),
        )  # fmt: skip
