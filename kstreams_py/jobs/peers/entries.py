"""The entries of a job at one acker: finds out when an input of any peer is complete, and notifies that peer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.messengers.frames import (
    Acks,
    Answers,
    Asks,
    Completions,
    Doubts,
    FailedSegment,
    GiveUps,
    HeldPatterns,
    Item,
    LostInputs,
    Opened,
)
from kstreams_py.jobs.messengers.pins import PIN_BYTES, acker_of, are_pinned_alike, input_of
from kstreams_py.jobs.peers.audits import SegmentAudit

Addressed = list[tuple[int, Item]]
"""Items, each with the number of the peer that gets it."""

DROP_FACTOR: Final = 3
"""An entry lives for at least this many times the longest timeout of an input."""


class Entries:
    """The acker of one job at one peer."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._acker = Acker()
        self._failed: dict[SegmentId, list[FailedSegment]] = {}
        self._audit = SegmentAudit()
        self._asked_for: set[SegmentId] = set()
        """The inputs that peers have doubted since the last `drop`."""
        self._held: dict[SegmentId, dict[int, int]] = {}
        """For each input, the XOR of the patterns that wait at gathers, by the number of the gather's peer."""
        self._is_broken = False
        """Whether a peer of this round cannot be asked, or may have segments that it does not count."""

    def __len__(self) -> int:
        return len(self._acker)

    @property
    def dropped(self) -> int:
        """How many entries were dropped."""
        return self._acker.dropped

    def take(self, item: Item, sender: int) -> Addressed:
        """Takes an item, and returns the answers. `sender`: the number of the peer that sent the item."""
        match item:
            case Opened():
                return self._settle(item.ids, self._acker.open(item.ids, item.patterns))
            case Acks():
                for failed in item.failed:
                    self._failed.setdefault(failed.id, []).append(failed)
                return self._settle(item.ids, self._acker.ack(item.ids, item.patterns))
            case Doubts():
                return self._doubt(item.ids, sender)
            case Answers():
                self._audit.hear(sender, item.number, zip(item.ids, item.patterns, strict=True))
                self._is_broken |= item.is_broken and item.number == self._audit.number
            case HeldPatterns():
                for segment, pattern in zip(item.ids, item.patterns, strict=True):
                    self._held.setdefault(segment, {})[sender] = pattern
                return self._give_up(item.ids)
        return []

    def _settle(self, changed: Iterable[SegmentId], complete: Iterable[SegmentId]) -> Addressed:
        """Returns the items that changed entries lead to."""
        found = self._complete(complete)
        if self._held:
            found += self._give_up([segment for segment in changed if segment in self._held])
        return found

    def _complete(self, segments: Iterable[SegmentId]) -> Addressed:
        by_input = by_peer(segments, PIN_BYTES)
        for ids in by_input.values():
            for segment in ids if self._held else ():
                self._held.pop(segment, None)
        return [(number, Completions(self._job, ids, self._take_failed(ids))) for number, ids in by_input.items()]

    def _take_failed(self, ids: Iterable[SegmentId]) -> list[FailedSegment]:
        if not self._failed:
            return []
        return [failed for segment in ids for failed in self._failed.pop(segment, ())]

    def _give_up(self, segments: Iterable[SegmentId]) -> Addressed:
        """Tells gathers to give up the segments of inputs that have no other segments under way."""
        found = Addressed()
        for segment in segments:
            held, total = self._held.get(segment, {}), 0
            for pattern in held.values():
                total ^= pattern
            if total and total == self._acker.left(segment):
                found += [(number, GiveUps(self._job, [segment])) for number, pattern in held.items() if pattern]
        return found

    def doubt_all(self) -> None:
        """Doubts all inputs, because a peer has left that may have had segments of any."""
        self._audit.doubt(self._acker.inputs)

    def _doubt(self, segments: Sequence[SegmentId], sender: int) -> Addressed:
        """Doubts inputs. An input without an entry is lost if the peer that has read it doubts it.

        - `sender`: the number of the peer that doubts them: they are overdue there, or it may have lost their segments.
        """
        known = {segment for segment in segments if self._acker.left(segment)}
        self._asked_for |= known
        self._audit.doubt(known)
        lost = [segment for segment in segments if segment not in known and input_of(segment) == sender]
        return [(sender, LostInputs(self._job, lost))] if lost else []

    def audit(self, now: float, peers: Collection[int], unreachable: Collection[int] = ()) -> Addressed:
        """Asks peers for the segments of doubted inputs, and notifies the peers that have read lost ones.

        - `peers`: the numbers of the members that may have segments of the job.
        - `unreachable`: the members that cannot be asked. They count as having no segments, because they could not
          acknowledge any.
        """
        if not self._audit:
            return []
        if unreachable:
            self._is_broken |= not {*peers}.isdisjoint(unreachable)
            peers = [peer for peer in peers if peer not in unreachable]
        lost = self._audit.finish(now, peers, self._acker.left)
        found = self._forget(lost)
        if parts := self._audit.begin(now, peers):
            self._is_broken = False
        for part in parts:
            found += [(peer, Asks(self._job, part, self._audit.number)) for peer in peers]
        return found

    def _forget(self, lost: Sequence[SegmentId]) -> Addressed:
        """Drops the entries of lost inputs, and tells the gathers that hold their segments to give these up."""
        self._acker.forget(lost)
        found = Addressed()
        for segment in lost:
            self._failed.pop(segment, None)
            found += [(number, GiveUps(self._job, [segment])) for number in self._held.pop(segment, ())]
        by_input = by_peer(lost, PIN_BYTES)
        return [*found, *((number, LostInputs(self._job, ids, self._is_broken)) for number, ids in by_input.items())]

    def drop(self) -> None:
        """Drops entries that are older than the last call and that no peer has asked for since.

        Call this at intervals that are longer than the timeout of an input.
        """
        asked_for, self._asked_for = self._asked_for, set()
        self._acker.drop(asked_for.__contains__)
        is_open = {*self._acker.inputs}.__contains__
        for kept in (self._failed, self._held):
            for segment in [segment for segment in kept if not is_open(segment)]:
                del kept[segment]


class Ackers:
    """The ackers of all jobs at one peer."""

    def __init__(self) -> None:
        self._entries: dict[str, Entries] = {}
        self._had: dict[str, set[int]] = {}
        """By job, the members that have or had a task of it: they may have segments of it."""
        self._dropped_after: dict[str, float] = {}
        """By job, the seconds after which entries that no peer asks for are dropped."""
        self._seconds: dict[str, float] = {}
        """By job, the seconds since the last drop, without those in which this peer could not act."""
        self._looked_at: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, job: str, peers: Iterable[int], timeout: float) -> None:
        """Notes the peers that have a task of a job. `timeout`: the longest timeout of its inputs, in seconds."""
        self._had.setdefault(job, set()).update(peers)
        self._dropped_after[job] = DROP_FACTOR * timeout

    def keep(self, jobs: Collection[str], members: Collection[int]) -> None:
        """Forgets the jobs that have ended, and the peers that have left."""
        for by_job in (self._entries, self._had, self._dropped_after, self._seconds):
            for job in [job for job in by_job if job not in jobs]:
                del by_job[job]
        for had in self._had.values():
            had.intersection_update(members)

    def take(self, item: Item, sender: int) -> Addressed:
        """Passes an item to the acker of its job; see Entries."""
        if (entries := self._entries.get(item.job)) is None:
            entries = self._entries[item.job] = Entries(item.job)
        return entries.take(item, sender)

    def doubt_all(self) -> None:
        """Doubts all inputs, because a peer has left that may have had segments of any."""
        for entries in self._entries.values():
            entries.doubt_all()

    def turn(self, now: float, *, may_act: bool, unreachable: Collection[int] = ()) -> Addressed:
        """Continues audits, and drops old entries.

        - `may_act`: whether this peer may act: only then does time count towards dropping entries.
        - `unreachable`: as in `Entries.audit`.
        """
        passed, self._looked_at = now - (now if self._looked_at is None else self._looked_at), now
        found = Addressed()
        for job, entries in self._entries.items():
            found += entries.audit(now, self._had.get(job, ()), unreachable)
            self._seconds[job] = self._seconds.get(job, 0.0) + (passed if may_act else 0.0)
            if self._seconds[job] > self._dropped_after.get(job, float("inf")):
                self._seconds[job] = 0.0
                entries.drop()
        return found


def by_peer(ids: Iterable[SegmentId], start: int = 0) -> dict[int, list[SegmentId]]:
    """Returns inputs by the number of a peer that their ids name: by default, their acker's peer.

    - `start`: where the number begins; PIN_BYTES for the peer that has read the input.
    """
    segments = [*ids]
    if segments and are_pinned_alike(segments, start):  # as in most turns: a look at each takes four times as long
        return {int.from_bytes(segments[0][start : start + PIN_BYTES], "big"): segments}
    found = dict[int, list[SegmentId]]()
    for segment in segments:
        found.setdefault(int.from_bytes(segment[start : start + PIN_BYTES], "big"), []).append(segment)
    return found


class Acknowledgements:
    """The acknowledgements of one turn, by the number of the acker's peer."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._by_acker: dict[int, Acks] = {}

    def add(self, ids: Sequence[SegmentId], patterns: Iterable[int]) -> None:
        """Adds the acknowledgements of copies: see Acker.ack."""
        if ids and are_pinned_alike(ids):  # as in most turns
            acks = self._of(ids[0])
            acks.ids.extend(ids)
            acks.patterns.extend(patterns)
            return
        for segment, pattern in zip(ids, patterns, strict=True):
            acks = self._of(segment)
            acks.ids.append(segment)
            acks.patterns.append(pattern)

    def add_failure(self, failed: FailedSegment) -> None:
        """Adds a failure. It must not come after the last acknowledgement of its input."""
        self._of(failed.id).failed.append(failed)

    def _of(self, segment: SegmentId) -> Acks:
        number = acker_of(segment)
        if (acks := self._by_acker.get(number)) is None:
            acks = self._by_acker[number] = Acks(self._job, [], [], [])
        return acks

    def take(self) -> Addressed:
        """Removes and returns the items."""
        items, self._by_acker = self._by_acker, {}
        return [*items.items()]
