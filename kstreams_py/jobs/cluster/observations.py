"""What is seen of a cluster besides its replica: who left and why, which heartbeats came, whose digest differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kstreams_py.jobs.cluster.commands import Entry, Leave, LeaveReason, PeerId
from kstreams_py.jobs.cluster.records import Beat, digest
from kstreams_py.jobs.cluster.state import Replica

DIGESTS_KEPT: Final = 20
"""How many of this reader's digests are kept, for comparison with those of peers."""


class BeatFigures(NamedTuple):
    """The newest heartbeat of a peer: seconds since it was read, and the digest of that peer's replica at an offset.

    - `unreachable`: the members that the peer cannot reach.
    """

    seconds: float
    offset: int
    digest: str
    unreachable: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """A cluster of peers at one moment, as one process of this machine sees it.

    - `left`: how many peers left since the process began to read the log, by reason.
    - `silent`: the peer that was found silent last; "" for none. `silent_seconds`: how long ago.
    - `beats`: the newest heartbeat of each member that was heard.
    - `diverged`: the peers whose replica differed from this one at the same offset.
    - `own`: the peers of this machine, with their slots.
    - `why`: why the log cannot be read; "" if it can.
    """

    replica: Replica
    left: Mapping[LeaveReason, int] = field(default_factory=dict)
    silent: str = ""
    silent_seconds: float = 0.0
    beats: Mapping[PeerId, BeatFigures] = field(default_factory=dict)
    diverged: tuple[PeerId, ...] = ()
    own: Mapping[PeerId, int] = field(default_factory=dict)
    why: str = ""

    @property
    def unreachable(self) -> Mapping[PeerId, tuple[PeerId, ...]]:
        """The members that each peer cannot reach, without peers that reach all."""
        found = {
            peer: tuple(p for p in beat.unreachable if p in self.replica.peers) for peer, beat in self.beats.items()
        }
        return {peer: others for peer, others in found.items() if others}


class Observations:
    """What one reader of a log has seen.

    Attributes:

    - `entries`: how many entries of the log were applied.
    - `foreign`: how many records were neither entries nor heartbeats.
    - `diverged`: the peers whose replica differed at the same offset.
    - `unreachable`: the members that each peer cannot reach, without peers that reach all. It is replaced and never
      changed, so that other threads may read it.
    """

    def __init__(self) -> None:
        self.entries = 0
        self.foreign = 0
        self.diverged: dict[PeerId, None] = {}
        self._left = dict.fromkeys(LeaveReason, 0)
        self._silent, self._silent_at = "", 0.0
        self._beats: dict[PeerId, tuple[float, Beat]] = {}
        self._digests: dict[int, str] = {}
        self.unreachable: Mapping[PeerId, tuple[PeerId, ...]] = {}

    def note(self, before: Replica, entry: Entry, now: float) -> None:
        """Takes an entry. `before`: the replica to which it is applied. `now`: monotonic seconds."""
        self.entries += 1
        command = entry.command
        if not isinstance(command, Leave) or command.peer not in before.peers:
            return  # every peer reports a silent one: only the first report counts
        self._left[command.reason] += 1
        self._beats.pop(command.peer, None)
        self._note_unreachable(command.peer, ())
        if command.reason is LeaveReason.SILENT:
            self._silent, self._silent_at = command.peer, now

    def digest_of(self, replica: Replica) -> str:
        """Returns the digest of this reader's replica, for comparison with those of peers."""
        if replica.offset not in self._digests:
            self._digests[replica.offset] = digest(replica)
            for old in [*self._digests][:-DIGESTS_KEPT]:
                del self._digests[old]
        return self._digests[replica.offset]

    def hear(self, beat: Beat, replica: Replica, now: float) -> bool:
        """Takes a heartbeat; returns whether it is the first to show that its peer's replica differs."""
        if beat.peer in replica.peers:
            self._beats[beat.peer] = now, beat
            self._note_unreachable(beat.peer, beat.unreachable)
        if self._digests.get(beat.offset, beat.digest) == beat.digest or beat.peer in self.diverged:
            return False
        self.diverged[beat.peer] = None
        return True

    def _note_unreachable(self, peer: PeerId, unreachable: tuple[PeerId, ...]) -> None:
        if unreachable != self.unreachable.get(peer, ()):
            others = {each: found for each, found in self.unreachable.items() if each != peer}
            self.unreachable = others | ({peer: unreachable} if unreachable else {})

    def turns_of(self, peer: PeerId) -> int:
        """Returns how many turns a peer's main loop has had; 0 if its heartbeats do not say. Any thread may call it."""
        return 0 if (found := self._beats.get(peer)) is None else found[1].turns

    def figures(self, replica: Replica, now: float) -> ClusterFigures:
        """Returns what was seen. `replica`: the newest one."""
        return ClusterFigures(
            replica,
            dict(self._left),
            self._silent,
            round(now - self._silent_at, 1) if self._silent else 0.0,
            {
                peer: BeatFigures(round(max(0.0, now - at), 1), beat.offset, beat.digest, beat.unreachable)
                for peer, (at, beat) in self._beats.items()
                if peer in replica.peers
            },
            tuple(peer for peer in self.diverged if peer in replica.peers),
        )
