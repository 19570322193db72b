"""The membership of one peer: applies the log, answers it, sends heartbeats, and finds out which peers are silent."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from kstreams_py.errors import DecodeError, SettingsError
from kstreams_py.jobs.cluster.commands import AcceptJoin, Command, Entry, Found, Leave, LeaveReason, PeerId, Volunteer
from kstreams_py.jobs.cluster.fold import VERSION, apply, find_refusal, refuse_version
from kstreams_py.jobs.cluster.heartbeats import Heartbeats
from kstreams_py.jobs.cluster.log import ClusterLog
from kstreams_py.jobs.cluster.observations import Observations
from kstreams_py.jobs.cluster.reactions import react
from kstreams_py.jobs.cluster.records import (
    Beat,
    decode_beat,
    decode_entry,
    decode_replica,
    encode_beat,
    encode_entry,
    encode_replica,
)
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.log_fields import repeated

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 2.0
"""Seconds after which a command that has not come back is appended again."""

KEPT_EVERY: Final = 1_000
"""The replica is kept, and the log is cut, after this many entries."""


class ClusterMembership:
    """What one peer knows of its cluster, and tells the others.

    Attributes:

    - `replica`: the newest state. It is replaced and never changed, so that other threads may read it.
    - `seen`: what this peer has seen of the cluster.
    - `turns`, `unreachable`: what the heartbeats say of this peer, as in Beat. The thread of its task sets them.
    """

    def __init__(self, log: ClusterLog, settings: Found, join: AcceptJoin, heartbeats: Heartbeats) -> None:
        """Makes no request.

        - `settings`: the first entry, if the log is empty.
        - `join`: what this peer joins with, under an id that no peer ever had.
        """
        self._log = log
        self._settings, self._join = settings, join
        self.me = join.peer
        self._heartbeats = heartbeats
        self.replica = Replica()
        self.seen = Observations()
        self.turns, self.unreachable = 0, tuple[PeerId, ...]()
        self._lock = threading.Lock()
        """Guards the outbox: the thread of the peer's task appends, too."""
        self._outbox: deque[Command] = deque()
        """The commands to append, in order. Only the first one may be on its way: if a command that is
        appended again came behind a later one, it would look like a copy.
        """
        self._sequence = 0
        """The number of the newest command that was appended."""
        self._appended_at: float | None = None
        """When the first command of the outbox was last appended; None if it was not."""
        self._accused: set[PeerId] = set()
        """The silent peers for which a leave waits or is on its way."""
        self._kept_at = -1

    @property
    def is_member(self) -> bool:
        """Whether this peer has joined, and has not left."""
        return self.me in self.replica.peers

    @property
    def has_left(self) -> bool:
        """Whether this peer has left, or was found silent: it may join only under another id."""
        return self.me in self.replica.departed

    def may_act(self, now: float) -> bool:
        """Returns whether this peer may take inputs, store results and acknowledge: see Heartbeats.has_lease."""
        return self.is_member and self._heartbeats.has_lease(now)

    def heartbeat_seconds(self, now: float) -> float | None:
        """Returns the seconds since the newest own heartbeat that came back was sent; None before the first."""
        return self._heartbeats.age(now)

    def start(self) -> None:
        """Reads the newest kept replica, and begins to join; `turn` continues the join.

        Raises what ClusterLog.start raises, and SettingsError if the cluster has other settings.
        """
        self.append(self._settings)
        if (kept := self._log.start()) is not None:
            self.replica = decode_replica(kept)
            self._kept_at = self.replica.offset
            self._check_settings()

    def append(self, command: Command) -> None:
        """Appends a command after those that wait. Any thread may call it."""
        with self._lock:
            if isinstance(command, Volunteer):  # a newer one replaces those that are not on their way
                sent = 0 if self._appended_at is None else 1
                kept = [
                    each for number, each in enumerate(self._outbox) if number < sent or type(each) is not Volunteer
                ]
                self._outbox = deque(kept)
            self._outbox.append(command)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be appended."""
        return not self._outbox

    def turn(self, now: float) -> bool:
        """Reads the log, and appends what is due; returns whether any entry was read. `now`: monotonic seconds.

        1. Apply each entry, and answer it.
        2. Append the next command.
        3. Take the heartbeats of the others, and send one; append a Leave for each silent peer.
        4. Keep the replica, if the log has grown enough.

        Raises InputLost; Retriable if the log is away (the next turn goes on); SettingsError if the cluster has other
        settings, or refuses this peer.
        """
        records = self._log.read()
        for record in records:
            self._apply(record.offset, record.value, now)
        self._append_next(now)
        if self.is_member:
            self._hear(now)
            self._beat(now)
            self._keep()
        return bool(records)

    def _apply(self, offset: int, value: bytes | None, now: float) -> None:
        try:
            entry = decode_entry(value)
        except DecodeError as error:
            self.seen.foreign += 1
            logger.warning(
                "the log of cluster %s has %s at offset %d: somebody else writes to it; it is left out",
                self._settings.cluster, error, offset, extra=repeated("foreign records of a cluster's log"),
            )  # fmt: skip
            return
        self.seen.note(self.replica, entry, now)
        before, self.replica = self.replica, apply(self.replica, entry, offset)
        if type(entry.command) is Found:
            self._check_settings()
        if entry.author == self.me and entry.sequence == self._sequence and self._appended_at is not None:
            with self._lock:
                self._outbox.popleft()
                self._appended_at = None
            self._go_on_joining(entry.command)
        for command in react(before, entry, self.replica, self.me):
            self.append(command)
        self._accused &= self.replica.peers.keys()

    def _go_on_joining(self, appended: Command) -> None:
        """Joins once this peer's first entry has come back: everything before that entry has then been read."""
        if type(appended) is Found:
            self.append(self._join)
        elif type(appended) is not AcceptJoin or self.is_member:
            return
        if why := find_refusal(self.replica, self._join):
            raise SettingsError(f"cluster {self._settings.cluster} refuses this peer: {why}")

    def _check_settings(self) -> None:
        """Raises SettingsError if the settings of the cluster differ from this peer's."""
        found, wanted = self.replica, self._settings
        if found.version != VERSION:
            raise refuse_version(wanted.cluster, found.version)
        if found.messenger != wanted.messenger:
            raise SettingsError(
                f"cluster {wanted.cluster} has the messenger {found.messenger}, and this peer {wanted.messenger}: "
                f"start it with --messenger {found.messenger}, or choose another name for the cluster"
            )
        if found.frame_max != wanted.frame_max:
            raise SettingsError(
                f"cluster {wanted.cluster} has frames of at most {found.frame_max} bytes, and this peer "
                f"{wanted.frame_max}: start it with --frame-max {found.frame_max}, or choose another name for the "
                "cluster"
            )
        if found.scheduler != wanted.scheduler:
            raise SettingsError(
                f"cluster {wanted.cluster} has the scheduler {found.scheduler}, and this peer {wanted.scheduler}: "
                f"start it with --scheduler {found.scheduler}, or choose another name for the cluster"
            )
        for option, of_cluster, own in (
            ("--drops-last", found.drops_last, wanted.drops_last),
            ("--joins-running", found.joins_running, wanted.joins_running),
        ):
            if of_cluster != own:
                raise SettingsError(
                    f"cluster {wanted.cluster} was created {'with' if of_cluster else 'without'} {option}: start this "
                    f"peer {'with' if of_cluster else 'without'} it, or choose another name for the cluster"
                )

    def _append_next(self, now: float) -> None:
        with self._lock:
            if not self._outbox or (self._appended_at is not None and now < self._appended_at + AGAIN_SECONDS):
                return
            if self._appended_at is None:
                self._sequence += 1
            self._appended_at = now
            entry = Entry(self.me, self._sequence, self._outbox[0])
        self._log.append(encode_entry(entry))

    def _hear(self, now: float) -> None:
        for value in self._log.read_beats():
            try:
                beat = decode_beat(value)
            except DecodeError as error:
                self.seen.foreign += 1
                logger.warning(
                    "the heartbeats of cluster %s have %s: somebody else writes to their topic; it is left out",
                    self._settings.cluster, error, extra=repeated("foreign records of a cluster's heartbeats"),
                )  # fmt: skip
                continue
            self._heartbeats.hear(beat.peer, beat.number, self.replica.peers)
            if self.seen.hear(beat, self.replica, now):
                logger.error(
                    "peers %s and %s do not agree at offset %d of the log of cluster %s: this is a fault of "
                    "kstreams_py: keep the topic for a report, and begin a cluster with another name",
                    self.me, beat.peer, beat.offset, self._settings.cluster,
                )  # fmt: skip
        for peer in self._heartbeats.silent():
            if peer in self.replica.peers and peer not in self._accused:
                self._accused.add(peer)
                self.append(Leave(peer, LeaveReason.SILENT))

    def _beat(self, now: float) -> None:
        if (number := self._heartbeats.next_number(now)) is None:
            return
        found = self.seen.digest_of(self.replica)
        beat = Beat(self.me, number, self.replica.offset, found, self.turns, self.unreachable)
        self._log.beat(encode_beat(beat))

    def _keep(self) -> None:
        """Keeps the replica after many entries, if this peer is the member that joined first."""
        offset = self.replica.offset
        if offset >= self._kept_at + KEPT_EVERY and next(iter(self.replica.peers)) == self.me:
            self._kept_at = offset
            self._log.keep(encode_replica(self.replica), offset)

    def close(self) -> None:
        """Closes the client of the log."""
        self._log.close()
