"""Warns, with the reason, if a member reads nothing; librdkafka retries most failures without a report."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Final

import confluent_kafka as ck

from kstreams_py.kafka.errors import UNREACHABLE, E
from kstreams_py.log_fields import answers, away, repeated
from kstreams_py.records import Positions, TopicPartition

logger = logging.getLogger(__name__)

STILL_SECONDS: Final = 30.0
"""Seconds without a record before a member looks for the reason, and between two attempts."""

OUTAGE: Final = UNREACHABLE | {E._UNKNOWN_PARTITION}
"""Errors of a request for ends while brokers are away. A client that gets no answer reports partitions as unknown."""

ENDS_SECONDS: Final = 1.0
"""Limit of the request for the ends of the partitions, in seconds."""


class Silence:
    """Measures how long a member has read nothing, and warns unless it has read all that its partitions have."""

    def __init__(self, member: str, group: str, limit: float) -> None:
        """`limit`: seconds that a request may take."""
        self._member = member
        self._reading = f"reading of {member}"
        self._group = group
        self._limit = min(limit, ENDS_SECONDS)
        self._is_away = False
        """Whether the log last said that brokers are away, not that they answer; a new client does not reset this."""
        self.joining()

    def joining(self) -> None:
        """Records that a new client joins the group."""
        self.start_offsets: Positions = {}
        """The offsets at which the partitions were assigned."""
        self._last_error = ""
        """The client's message about the last failure that it retries."""
        self._is_unreachable = False
        """Whether that failure was a failed connection."""
        self.has_assignment = False
        """Whether the group has made an assignment to this member, even one without partitions."""
        self._since = time.monotonic()

    def assigned(self) -> None:
        """Records that the group has made an assignment."""
        self.has_assignment, self.start_offsets, self._last_error, self._is_unreachable = True, {}, "", False
        self._answered()

    def revoked(self) -> None:
        """Records that the assignment is over."""
        self.has_assignment = False

    def heard(self) -> None:
        """Records that the member has read a record, or has reached the end of a partition."""
        self._since = time.monotonic()
        if self._is_away:
            self._answered()

    def failed(self, error: ck.KafkaError) -> None:
        """Records a failure that the client retries."""
        self._last_error = f": {error.str()} ({error.name()})"
        self._is_unreachable = error.code() in UNREACHABLE

    def look(self, client: ck.Consumer, ends: Positions, paused: Collection[TopicPartition]) -> None:
        """Logs a warning if nothing has been read for STILL_SECONDS, and one of these holds:

        - the group has made no assignment,
        - the brokers do not answer, or the end offsets cannot be read,
        - records wait in a partition that is not paused.

        `ends` has the end offset of each partition that was read to its end.
        """
        if time.monotonic() - self._since < STILL_SECONDS:
            return
        self._since = time.monotonic()
        if not self.has_assignment:
            unassigned = (
                f"the group {self._group!r} has made it no assignment for {STILL_SECONDS:g} s{self._last_error}"
            )
            self._warn(unassigned, is_away=self._is_unreachable)
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
            if error.args[0].code() in OUTAGE:
                self._warn(f"{still}: the brokers of its partitions do not answer{self._last_error}", is_away=True)
            else:
                self._warn(f"{still}, and the ends of the partitions are unknown: {error.args[0].str()}")
            return
        self._answered()
        if waiting:
            named = ", ".join(f"{end.topic}[{end.partition}] up to {end.offset}" for end in waiting)
            self._warn(f"{still}, though records wait: {named}{self._last_error}")

    def _waits(self, at: ck.TopicPartition, end: ck.TopicPartition, ends: Positions) -> bool:
        """Returns whether a partition has records that were not read, or its end is unknown."""
        tp = TopicPartition(end.topic, end.partition)
        return end.error is not None or end.offset > max(at.offset, self.start_offsets[tp], ends.get(tp, 0))

    def _warn(self, text: str, *, is_away: bool = False) -> None:
        """Logs a warning.

        - `is_away`: whether unreachable brokers are the reason; the log then folds it into the outage of all clients.
        """
        self._is_away |= is_away
        of_kind = repeated(f"times that {self._member} reads nothing", text)
        logger.warning("%s: %s", self._member, text, extra=away(self._reading) if is_away else of_kind)

    def _answered(self) -> None:
        if self._is_away:
            self._is_away = False
            logger.info("%s: the brokers answer again", self._member, extra=answers(self._reading))
