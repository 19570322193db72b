"""The stores of one worker: one for each task that it holds, restored before a step of the task is run.

A store is at the offsets of its task while the outcome of its last commit is known. After a rebalance another worker
may have had the task, and after a commit without an answer the outcome is unknown. Then the store is restored again,
from the offset up to which it has read its changelog, to the end that the changelog has at that moment. The restore
waits for transactions that are open there: one of them may commit these offsets
(test_store_is_not_restored_past_an_open_transaction).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar, cast

from kstreams_py.errors import (
    BrokerUnavailable,
    ClientError,
    DecodeError,
    Fatal,
    InputLost,
    KStreamsError,
    NotRestored,
    Retriable,
    TopicError,
)
from kstreams_py.kafka.contracts import Cluster, Output
from kstreams_py.kafka.foreign_records import foreign
from kstreams_py.log_fields import repeated
from kstreams_py.records import Message, Positions, TopicPartition, Unreadable
from kstreams_py.state.changelog import (
    READ_AT_ONCE,
    Changelog,
    Commands,
    Position,
    change_records,
    positions_record,
    read_positions,
    write_positions,
)
from kstreams_py.state.keyed import CHECKPOINT_SECONDS, POSITIONS_KEY, Changes, TaskStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

PART_SECONDS: Final = 1.0
"""Seconds after which a restore pauses: the worker polls the group between the parts of a restore."""

OPEN_SECONDS: Final = 30.0
"""Seconds that a restore may wait for a transaction before a warning; the broker ends most transactions sooner."""

LOOK_SECONDS: Final = 30.0
"""Seconds between two requests for the end of a changelog, from which the next restore of its store begins."""

MISSING_SECONDS: Final = 30.0
"""Seconds for which a changelog may be unknown to brokers: a new topic reaches brokers one by one."""


def lost_changelog(name: str, changelog: Changelog, before: str, offsets: Positions, commands: Commands) -> InputLost:
    """Returns the error for a state that was begun, but whose changelog has no records.

    - `name`: names the processor and its state.
    - `changelog`: has an empty id if the topic does not exist.
    - `before`: the id of the changelog that had the state.
    - `offsets`: the committed offsets of the tasks; no task has a record in the changelog.
    - `commands`: the commands of the remedy.
    """
    here = name_offsets(offsets)
    numbers = sorted({tp.partition for tp in offsets})
    tasks = ", ".join(str(TopicPartition(changelog.topic, number)) for number in numbers)
    now = f"{tasks}, with id {changelog.topic_id}, is empty" if changelog.topic_id else f"{tasks} does not exist"
    return InputLost(
        f"{name}: its changelog {now}, and the state was in the one with id {before}: it was deleted, and its contents "
        f"are lost: {commands.make_again}; or set it to where it is (`{commands.reset} {here}`, and so for the "
        "partitions of other workers), so that the state begins empty there"
    )


def name_offsets(offsets: Positions) -> str:
    """Returns the options of `kstreams recover reset` that set these offsets."""
    return " ".join(f"--to-offset {tp.topic}:{tp.partition}:{at}" for tp, at in offsets.items())


def begin_empty(commands: Commands, topic: str, group: Positions) -> str:
    """Returns how to let a state begin empty at its group's offsets. `topic`: the changelog."""
    where = "where it is" if group else "where it should go on"
    here = name_offsets(group) or "--to-beginning"
    return (
        f"delete topic {topic!r} (`{commands.delete}`), and set the group to {where} (`{commands.reset} {here}`, and "
        "so for its other tasks), so that the state begins empty there"
    )


class Stores:
    """The stores of a processor, by the partition number of their tasks."""

    def __init__(
        self,
        name: str,
        changelog: Changelog,
        topic_ids: Mapping[str, str],
        cluster: Cluster,
        open_store: Callable[[int, str], TaskStore],
        clock: Callable[[], float],
        show_commands: Callable[[], Commands] = Commands,
    ) -> None:
        """Makes no request.

        - `name`: names the processor and its state, for the log.
        - `changelog`: the topic of its changes.
        - `topic_ids`: the broker's id of each input.
        - `open_store`: opens the store of a partition number, with the id of the changelog.
        - `clock`: returns seconds.
        - `show_commands`: returns the commands that messages name.
        """
        self.by_partition: dict[int, TaskStore] = {}
        self._name, self._changelog, self._topic_ids = name, changelog, topic_ids
        self._cluster, self._open_store, self._clock = cluster, open_store, clock
        self._show_commands = show_commands
        self._behind_since: float | None = None
        """The clock time at which a restore began to wait for a transaction, or last warned about it."""
        self._missing_since: float | None = None
        """The clock time since which no broker knows the changelog."""
        self._positions: dict[int, dict[str, Position]] = {}
        """The positions that each store belongs to."""
        self._named: dict[int, str] = {}
        """The id of the changelog that each store belongs to."""
        self._read_to: dict[int, int] = {}
        """The offset before which each store has all records of its changelog."""
        self._known_at: dict[int, float] = {}
        """When each store was last known to have all of its changelog, or was opened, in seconds since 1970."""
        self._goals: dict[int, int] = {}
        """For each store that is being restored, the end of its changelog at the beginning of the restore."""
        self._doubts: dict[int, str] = {}
        """Why a store did not match the committed offsets when it was last restored."""
        self._newest: dict[int, Message] = {}
        """The newest record of positions that was read for each store that is being restored."""
        self._trusted = set[int]()
        """Stores that no other worker can have changed since they were restored."""
        self._unplaced = set[int]()
        """Stores whose changelog has no record of positions."""
        self._looked_at = clock()
        self._ends: Positions = {}
        """The ends that `look` has found: if the next commit succeeds, no other worker had the tasks until then."""

    @property
    def size(self) -> int:
        """Uncommitted bytes."""
        return sum(store.size for store in self.by_partition.values())

    @property
    def changelog(self) -> Changelog:
        """The changelog; its id is "" while it is not known."""
        return self._changelog

    # Between two assignments.

    def suspect(self) -> None:
        """Drops uncommitted changes; another worker may now have the tasks."""
        self.roll_back()
        self._trusted.clear()
        self._goals.clear()

    def restore(self, positions: Positions, partitions: Collection[TopicPartition]) -> None:
        """Restores the stores of these input partitions, whose committed offsets are `positions`.

        Raises NotRestored after a part of the restore: call again with the same arguments. Raises InputLost if a store
        belongs to other positions, other topics or another changelog, TopicError without a changelog, and ClientError.
        """
        self.roll_back()
        numbers = {tp.partition for tp in partitions}
        for number in self.by_partition.keys() - numbers:
            self._drop(number)
        group: dict[int, dict[str, int]] = {number: {} for number in numbers}
        for tp, at in positions.items():
            group[tp.partition][tp.topic] = at
        self._trusted -= {number for number in self._trusted if self._differing(number, group[number])}
        if left := sorted(numbers - self._trusted):
            self._begin({number: group[number] for number in left if number not in self._goals})
            self._read_on(left)
        for number in left:
            self._check(number, group[number])
            self._positions[number] = self._placed(group[number])
            self._named[number] = self._changelog.topic_id
            self._known_at[number] = time.time()
            self.by_partition[number].base.note(self._read_to[number])
        self._trusted |= numbers

    def _begin(self, groups: Mapping[int, Mapping[str, int]]) -> None:
        """Opens these stores, and requests the ends of their changelogs. `groups`: the committed offsets of each."""
        if not groups:
            return
        self._check_changelog()
        changelogs = [self._changelog_of(number) for number in groups]
        starts = self._ask(lambda: self._cluster.starts(changelogs))
        for (topic, number), end in self._ask(lambda: self._cluster.ends(changelogs, committed=False)).items():
            self._open(number)
            base = self.by_partition[number].base
            is_of_another = base.foreign or end < self._read_to[number]
            if is_of_another and not end and any(groups[number].values()):
                raise self._emptied(number, base.foreign or f"the state up to offset {self._read_to[number]}")
            if is_of_another or time.time() - self._known_at[number] > CHECKPOINT_SECONDS:
                base.clear()
                self._read_to[number], self._positions[number], self._named[number] = 0, {}, ""
            if (start := starts[TopicPartition(topic, number)]) > self._read_to[number]:
                raise InputLost(
                    f"{self._name}: the records of its changelog {topic}[{number}] before offset {start} were deleted, "
                    f"and their contents are lost: {self._start_over}"
                )
            self._goals[number] = end

    @property
    def _start_over(self) -> str:
        return self._show_commands().start_over(self._changelog.topic)

    def _check_changelog(self) -> None:
        """Raises InputLost if the changelog was created again; Retriable, later TopicError, if it does not exist."""
        topic, known = self._changelog
        found = self._ask(lambda: self._cluster.topics([topic])).get(topic)
        if found is None:
            now = self._clock()
            self._missing_since = now if self._missing_since is None else self._missing_since
            why = f"{self._name}: no broker knows its changelog {topic!r}"
            if now - self._missing_since < MISSING_SECONDS:
                raise Retriable(why)
            raise TopicError(f"{why}: it was deleted, and its contents are lost: {self._show_commands().make_again}")
        self._missing_since = None
        if known and found.topic_id and found.topic_id != known:
            raise self._replaced(known, found.topic_id)
        self._changelog = Changelog(topic, found.topic_id)

    def _replaced(self, known: str, now: str) -> InputLost:
        topic = self._changelog.topic
        return InputLost(
            f"{self._name} is of another changelog: {topic!r} had the id {known}, and has {now} now: it was deleted "
            f"and created again, and its contents are lost: {self._start_over}"
        )

    def _emptied(self, number: int, had: str) -> InputLost:
        tp, topic_id = self._changelog_of(number), self._changelog.topic_id
        return InputLost(
            f"{self._name}: its changelog {tp}, with id {topic_id}, is empty, and this worker has {had}: the "
            "changelog's contents are lost: delete what this worker has, and "
            f"{self._show_commands().make_again}, or to where it is, so that the state begins empty there"
        )

    def _ask(self, request: Callable[[], T]) -> T:
        """Makes a request about the changelog. Raises Retriable if no broker answers: that must not end a worker."""
        try:
            return request()
        except BrokerUnavailable as error:
            if not error.may_return:
                raise
            raise Retriable(str(error)) from None
        except Fatal as error:
            raise Fatal(f"{self._name}: its changelog {self._changelog.topic!r} cannot be restored: {error}") from None

    def _changelog_of(self, number: int) -> TopicPartition:
        return TopicPartition(self._changelog.topic, number)

    def _read_on(self, numbers: Collection[int]) -> None:
        """Continues to read the changelogs of these stores, to the ends that they had when the restore began."""
        deadline = self._clock() + PART_SECONDS
        changelogs = {number: self._changelog_of(number) for number in numbers}
        stable = self._ask(lambda: self._cluster.ends(list(changelogs.values())))
        for number, tp in changelogs.items():
            while (at := self._read_to[number]) < min(stable[tp], self._goals[number]):
                records = self._cluster.read(tp, at, READ_AT_ONCE)
                self._apply(number, records)
                is_whole = len(records) < READ_AT_ONCE
                self._read_to[number] = max(stable[tp], at) if is_whole else records[-1].offset() + 1
                if not is_whole and self._clock() > deadline:
                    left = max(0, self._goals[number] - self._read_to[number])
                    raise NotRestored(f"{self._name}: restoring: at most {left:,} records left of {tp}")
        if behind := [tp for number, tp in changelogs.items() if self._read_to[number] < self._goals[number]]:
            self._warn_of_open_transactions(behind)
            raise NotRestored(f"{self._name}: restoring: a transaction is open in {behind[0]}")
        self._behind_since = None
        for number in numbers:
            try:
                self._decode(number)
            except ValueError as error:  # a value that was replaced since does no harm
                raise self._foreign(self._newest[number], "a record of positions", error) from None
            del self._goals[number]
            self._newest.pop(number, None)

    def _warn_of_open_transactions(self, changelogs: Collection[TopicPartition]) -> None:
        now = self._clock()
        self._behind_since = now if self._behind_since is None else self._behind_since
        if now - self._behind_since >= OPEN_SECONDS:
            self._behind_since = now
            logger.warning(
                "%s waits for the end of transactions in %s: `%s` shows those that hang", self._name,
                ", ".join(map(str, sorted(changelogs))), self._show_commands().find,
                extra=repeated(f"restores of {self._name} that wait for transactions"),
            )  # fmt: skip

    def _open(self, number: int) -> None:
        """Opens a store, if it is not open, with what an earlier process has left of it."""
        if number not in self.by_partition:
            store = self.by_partition[number] = self._open_store(number, self._changelog.topic_id)
            self._read_to[number], self._known_at[number] = store.base.noted, time.time()
            try:
                self._decode(number)
            except ValueError:
                # the store counts as too old; the fault is found again in the changelog, from which the value was read
                self._known_at[number], self._named[number], self._positions[number] = 0.0, "", {}

    def _apply(self, number: int, records: Sequence[Message]) -> None:
        try:
            changes = {m.key(): m.value() for m in records}
        except DecodeError as error:
            unread = next(m for m in records if isinstance(m, Unreadable) and m.value_fault)
            raise self._foreign(unread, "a change of a state", error) from None
        if None in changes:
            unnamed = next(m for m in records if m.key() is None)
            raise self._foreign(unnamed, "a change of a state", "it has no key")
        if POSITIONS_KEY in changes:
            self._newest[number] = next(m for m in reversed(records) if m.key() == POSITIONS_KEY)
        self.by_partition[number].base.apply(cast(Changes, changes))

    def _decode(self, number: int) -> None:
        """Reads from a store its positions and the changelog's id. Raises ValueError if they are unreadable."""
        value = self.by_partition[number].base.get(POSITIONS_KEY)
        self._named[number], self._positions[number] = ("", {}) if value is None else read_positions(value)

    def _foreign(self, m: Message, what: str, why: object) -> TopicError:
        return TopicError(f"{self._name}: {foreign(m, what, why)}: {self._start_over}")

    def _differing(self, number: int, group: Mapping[str, int]) -> bool:
        """Whether the group's offsets differ from those of a store."""
        return {topic: at.next for topic, at in self._positions[number].items()} != group

    def _placed(self, group: Mapping[str, int]) -> dict[str, Position]:
        return {topic: Position(self._topic_ids.get(topic, ""), at) for topic, at in group.items()}

    def _check(self, number: int, group: Mapping[str, int]) -> None:
        """Raises InputLost if a restored store does not match its changelog, or the group's offsets."""
        named, topic_id = self._named[number], self._changelog.topic_id
        at_group = {TopicPartition(topic, number): at for topic, at in group.items()}
        if named and topic_id and named != topic_id:
            raise self._replaced(named, topic_id)
        for topic, (topic_id, at) in self._positions[number].items():
            tp = TopicPartition(topic, number)
            if topic not in self._topic_ids:
                continue  # the processor no longer reads it
            if topic_id != self._topic_ids[topic]:
                raise InputLost(
                    f"{self._name} does not belong to its input: topic {topic!r} was deleted and created again since: "
                    f"stop all workers, {begin_empty(self._show_commands(), self._changelog.topic, at_group)}"
                )
            committed = group.get(topic)
            if committed is None:
                why = "which has no committed offset (if the processor has a new id, give it the previous one)"
                raise self._mistaken(number, at_group, f"it is at {tp}@{at}, {why}")
            if committed != at:
                raise self._mistaken(number, at_group, f"it is at {tp}@{at}, but the group is at {committed}")
        self._doubts.pop(number, None)
        if self.by_partition[number].base.get(POSITIONS_KEY) is None:
            self._unplaced.add(number)
        else:
            self._unplaced.discard(number)

    def _mistaken(self, number: int, group: Positions, why: str) -> KStreamsError:
        """Returns NotRestored the first time, then InputLost.

        In between, the worker polls the group and asks for its offsets again: another worker may have committed since.
        """
        if self._doubts.get(number) != why:
            self._doubts[number] = why
            return NotRestored(f"{self._name}: {why}: asking again")
        state = {
            TopicPartition(topic, number): at.next
            for topic, at in self._positions[number].items()
            if topic in self._topic_ids
        }
        commands = self._show_commands()
        return InputLost(
            f"{self._name} does not belong to the committed offsets: {why}: stop all workers, then set the group to "
            f"where the state is (`{commands.reset} {name_offsets(state)}`, and so for its other tasks), or "
            f"{begin_empty(commands, self._changelog.topic, group)}"
        )

    # The first record of positions.

    def check_begun(self, begun: Mapping[int, str]) -> None:
        """Raises InputLost if a state was begun and the changelog that had it is lost. Call it after `restore`.

        - `begun`: by partition number, the id of the changelog in which the state was begun, if it was.
        """
        first = self.empty
        if lost := sorted(first.keys() & begun.keys()):
            offsets = {tp: at for number in lost for tp, at in first[number].items()}
            raise lost_changelog(self._name, self._changelog, begun[lost[0]], offsets, self._show_commands())

    @property
    def empty(self) -> dict[int, Positions]:
        """The stores that begin empty although the group has read records: its offsets, by partition number."""
        return {number: offsets for number, offsets in self._unplaced_offsets().items() if any(offsets.values())}

    def warn_of_empty(self) -> None:
        """Warns of stores that begin empty although the group has read records."""
        for number, offsets in self.empty.items():
            logger.warning(
                "%s begins empty at %s", self._name, ", ".join(f"{tp}@{at}" for tp, at in offsets.items()),
                extra=repeated(f"tasks whose {self._name} begins empty", partition=number),
            )  # fmt: skip

    def _unplaced_offsets(self) -> dict[int, Positions]:
        return {
            number: {TopicPartition(topic, number): at.next for topic, at in sorted(self._positions[number].items())}
            for number in sorted(self._unplaced)
        }

    @property
    def unplaced(self) -> Positions:
        """The committed offsets of stores whose changelog has no record of positions."""
        return {tp: at for offsets in self._unplaced_offsets().values() for tp, at in offsets.items()}

    def _drop(self, number: int) -> None:
        self.by_partition.pop(number).base.close()
        for each in (self._positions, self._named, self._read_to, self._known_at, self._goals, self._doubts):
            each.pop(number, None)
        self._newest.pop(number, None)
        self._trusted.discard(number)
        self._unplaced.discard(number)

    # In an assignment.

    def records(self, positions: Positions) -> list[Output]:
        """Returns the records of uncommitted changes, and of the positions to which they belong."""
        outputs: list[Output] = []
        for number in sorted({tp.partition for tp in positions}):
            if changes := self.by_partition[number].changes:
                outputs += change_records(self._changelog.topic, number, changes)
            outputs.append(positions_record(self._changelog, number, self._moved(number, positions)))
        return outputs

    def _moved(self, number: int, positions: Positions) -> dict[str, Position]:
        return self._positions[number] | self._placed(
            {tp.topic: at for tp, at in positions.items() if tp.partition == number}
        )

    def committed(self, positions: Positions) -> None:
        """Keeps the changes and positions that `records` returned, once they are committed."""
        for number in {tp.partition for tp in positions}:
            self._positions[number] = moved = self._moved(number, positions)
            self._known_at[number] = time.time()
            self._unplaced.discard(number)
            self.by_partition[number].commit(write_positions(self._changelog.topic_id, moved))
        if self._ends:
            self._looked_at = self._clock()
        for tp, end in self._ends.items():
            self._read_to[tp.partition] = end
            self.by_partition[tp.partition].base.note(end)
        self._ends = {}

    def look(self) -> None:
        """Requests the ends of the changelogs, about once in LOOK_SECONDS, before the offsets of a commit are sent.

        If the group then takes the offsets, no other worker had the tasks, and the stores have everything before these
        ends. `committed` notes them. Raises InputLost if the changelog was deleted and created again.
        """
        if self._clock() - self._looked_at <= LOOK_SECONDS:
            return
        try:
            self._check_changelog()
            self._ends = self._ask(lambda: self._cluster.ends([*map(self._changelog_of, self.by_partition)]))
        except ClientError as error:
            self._looked_at = self._clock()
            logger.debug("%s: cannot read the end of its changelog: %s", self._name, error)

    def roll_back(self) -> None:
        """Drops uncommitted changes."""
        self._ends = {}
        for store in self.by_partition.values():
            store.roll_back()

    def close(self) -> None:
        """Frees the stores."""
        for number in list(self.by_partition):
            self._drop(number)
