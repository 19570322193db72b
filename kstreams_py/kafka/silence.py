"""Warns of a member that reads nothing, with the reason; librdkafka retries most failures without a report."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Final

import confluent_kafka as ck

from kstreams_py.log_fields import repeated
from kstreams_py.records import Positions, TopicPartition

logger = logging.getLogger(__name__)

STILL_SECONDS: Final = 30.0
"""Seconds without a record before a member looks for the reason, and between two attempts."""

ENDS_SECONDS: Final = 1.0
"""Limit of the request for the ends of the partitions, in seconds."""


class Silence:
    """Measures how long a member has read nothing; logs a warning if the group or the brokers are the reason."""

    def __init__(self, member: str, group: str, limit: float) -> None:
        """`limit`: seconds that a request may take."""
        self.start_offsets: Positions = {}
        """The offsets at which the partitions were assigned."""
        self.last_error = ""
        """The client's message about the last failure that it retries."""
        self._member = member
        self._group = group
        self._limit = min(limit, ENDS_SECONDS)
        self.has_assignment = False
        """Whether the group has made an assignment to this member, even one without partitions."""
        self.heard()

    def assigned(self) -> None:
        """Records that the group has made an assignment."""
        self.has_assignment, self.start_offsets, self.last_error = True, {}, ""

    def revoked(self) -> None:
        """Records that the assignment is over."""
        self.has_assignment = False

    def heard(self) -> None:
        """Records that the member has read a record, or has reached the end of a partition."""
        self._since = time.monotonic()

    def look(self, client: ck.Consumer, ends: Positions, paused: Collection[TopicPartition]) -> None:
        """Logs a warning if nothing has been read for STILL_SECONDS though records wait.

        `ends` has the end offset of each partition that was read to its end.
        """
        if time.monotonic() - self._since < STILL_SECONDS:
            return
        self.heard()
        if not self.has_assignment:
            self._warn(f"the group {self._group!r} has made it no assignment for {STILL_SECONDS:g} s{self.last_error}")
            return
        wanted = [ck.TopicPartition(*tp, ck.OFFSET_END) for tp in self.start_offsets if tp not in paused]
        if not wanted:
            return
        still = f"nothing has been read for {STILL_SECONDS:g} s"
        try:
            found = client.offsets_for_times(wanted, self._limit)
            waiting = [
                end for at, end in zip(client.position(wanted), found, strict=True) if self._waits(at, end, ends)
            ]
        except ck.KafkaException as error:
            self._warn(f"{still}, and the ends of the partitions are unknown: {error.args[0].str()}")
            return
        if waiting:
            named = ", ".join(f"{end.topic}[{end.partition}] up to {end.offset}" for end in waiting)
            self._warn(f"{still}, though records wait: {named}{self.last_error}")

    def _waits(self, at: ck.TopicPartition, end: ck.TopicPartition, ends: Positions) -> bool:
        """Whether a partition has records that were not read, or its end is unknown."""
        tp = TopicPartition(end.topic, end.partition)
        return end.error is not None or end.offset > max(at.offset, self.start_offsets[tp], ends.get(tp, 0))

    def _warn(self, text: str) -> None:
        logger.warning("%s: %s", self._member, text, extra=repeated(f"times that {self._member} reads nothing", text))
