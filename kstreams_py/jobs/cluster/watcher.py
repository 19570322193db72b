"""Reads the log of a cluster without being a member, for a process that shows what its peers do."""

from __future__ import annotations

from kstreams_py.errors import DecodeError
from kstreams_py.jobs.cluster.fold import apply
from kstreams_py.jobs.cluster.log import ClusterLog
from kstreams_py.jobs.cluster.observations import Observations
from kstreams_py.jobs.cluster.records import decode_beat, decode_entry, decode_replica
from kstreams_py.jobs.cluster.state import Replica


class ClusterWatcher:
    """The replica of a reader that appends nothing, and what it has seen."""

    def __init__(self, log: ClusterLog) -> None:
        """Makes no request."""
        self._log = log
        self.replica = Replica()
        self.seen = Observations()

    def start(self) -> None:
        """Reads the newest kept replica. Raises what ClusterLog.start raises."""
        if (kept := self._log.start()) is not None:
            self.replica = decode_replica(kept)

    def turn(self, now: float) -> None:
        """Reads new entries and heartbeats. `now`: monotonic seconds. Raises InputLost; Retriable if the log is away.

        A digest is compared only if the heartbeat is about the newest entry that was read: a digest for each entry
        would cost more than the entry.
        """
        for record in self._log.read():
            try:
                entry = decode_entry(record.value)
            except DecodeError:
                self.seen.foreign += 1
                continue
            self.seen.note(self.replica, entry, now)
            self.replica = apply(self.replica, entry, record.offset)
        for value in self._log.read_beats():
            try:
                beat = decode_beat(value)
            except DecodeError:
                self.seen.foreign += 1
                continue
            if beat.offset == self.replica.offset:
                self.seen.digest_of(self.replica)
            self.seen.hear(beat, self.replica, now)

    def close(self) -> None:
        """Closes the client of the log."""
        self._log.close()
