"""Why no record comes to a member of a group; librdkafka asks again and again, and says nothing of most failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Final

import confluent_kafka as ck

from kstreams_py.record import Positions, TopicPartition

logger = logging.getLogger(__name__)

STILL_SECONDS: Final = 30.0
"""How long nothing comes until it is looked whether something should, and each time after."""

ENDS_SECONDS: Final = 1.0
"""How long the ends of the partitions are asked for then."""


class Silence:
    """How long nothing has come to a member; it logs a warning where the group or the brokers are the reason."""

    def __init__(self, member: str, group: str, limit: float) -> None:
        self.begun: Positions = {}
        """Where the partitions were assigned."""
        self.complaint = ""
        """What the client said last of a failure that it goes on with."""
        self._member = member
        self._group = group
        self._limit = min(limit, ENDS_SECONDS)
        self.is_dealt = False
        """Whether the group has said which partitions are this member's, be it none."""
        self.broken()

    def dealt(self) -> None:
        """The group has dealt its partitions."""
        self.is_dealt, self.begun, self.complaint = True, {}, ""

    def revoked(self) -> None:
        """The partitions were taken away."""
        self.is_dealt = False

    def broken(self) -> None:
        """A record has come, or the end of a partition."""
        self._since = time.monotonic()

    def look(self, client: ck.Consumer, ends: Positions, paused: Collection[TopicPartition]) -> None:
        """Nothing has come this time. `ends` are the partitions that were read out, with the offset behind the last."""
        if time.monotonic() - self._since < STILL_SECONDS:
            return
        self.broken()
        if not self.is_dealt:
            self._warn(f"the group {self._group!r} has dealt it no partitions for {STILL_SECONDS:g} s{self.complaint}")
            return
        wanted = [ck.TopicPartition(*tp, ck.OFFSET_END) for tp in self.begun if tp not in paused]
        if not wanted:
            return
        still = f"nothing has been read for {STILL_SECONDS:g} s"
        try:
            found = client.offsets_for_times(wanted, self._limit)
            waiting = [
                end for at, end in zip(client.position(wanted), found, strict=True) if self._waits(at, end, ends)
            ]
        except ck.KafkaException as error:
            self._warn(f"{still}, and the brokers do not say where the partitions end: {error.args[0].str()}")
            return
        if waiting:
            named = ", ".join(f"{end.topic}[{end.partition}] up to {end.offset}" for end in waiting)
            self._warn(f"{still}, though records wait: {named}{self.complaint}")

    def _waits(self, at: ck.TopicPartition, end: ck.TopicPartition, ends: Positions) -> bool:
        """Whether a partition goes on behind what was read of it, or its end is not known."""
        tp = TopicPartition(end.topic, end.partition)
        return end.error is not None or end.offset > max(at.offset, self.begun[tp], ends.get(tp, 0))

    def _warn(self, text: str) -> None:
        logger.warning("%s: %s", self._member, text)
