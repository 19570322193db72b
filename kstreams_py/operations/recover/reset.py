"""Reads the positions of a graph's processors, and sets them in one transaction with all records that belong to them.

Besides the committed offsets, the transaction writes

- the records of beginnings, so that a start notices if positions have expired before it;
- the journals: an alts must not follow older choices, and a processor with a journal starts at a snapshot at the new
  offsets.

The broker refuses the offsets while the group has members. Afterwards, the records of deliveries to another
cluster are deleted there.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import BrokerUnavailable, ClientError, KStreamsError, OutcomeUnknown, UserMistake
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.names import recover_id
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.contracts import TRANSACTIONAL, Output, Producer, TopicInfo
from kstreams_py.kafka.transactions import find_command_at
from kstreams_py.operations.committed import CommittedReader, find_all_topics
from kstreams_py.operations.records.send import IDEMPOTENT
from kstreams_py.operations.recover.consequences import describe_consequences
from kstreams_py.operations.recover.positions import (
    Move,
    check_no_members,
    check_targets,
    decode,
    encode,
    moves_of,
    partitions_of,
    select,
)
from kstreams_py.operations.transactions.abort import UNCHANGED
from kstreams_py.processing.beginning import BegunPartition, begun_record, forgotten_state, read_begun, states_begun
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.journal.choices_journal import ChoicesJournal
from kstreams_py.processing.journal.records import Snapshot, forgotten_record, snapshot_record
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.processing.topics import check_topics
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment

BEGINNING: Final = "beginning"
END: Final = "end"


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where a processor goes on: at offsets, at a time, or at an end of the log.

    - `offsets`: by partition; positions of other partitions stay.
    - `since`: milliseconds since 1970, for all partitions.
    - `end`: BEGINNING or END, for all partitions.
    """

    offsets: Positions | None = None
    since: int | None = None
    end: str = BEGINNING


class GraphPositions:
    """Reads and moves the positions of a graph's processors."""

    def __init__(self, graph: Graph, name: str, environment: Environment, admin: GroupAdmin) -> None:
        """Makes no request.

        - `name`: the graph's name on the command line, for commands in messages.
        """
        self._graph = graph
        self._name = name
        self._id = recover_id(graph.name)
        self._environment = environment
        self._cluster = environment.cluster
        self._admin = admin
        self._attempts = Attempts(self._id, self._id, environment.sleep)
        self._committed = CommittedReader(graph, environment)

    def export(self) -> str:
        """Returns the positions of all processors as a file's content. Raises UserMistake if a group has members."""
        topics = self._topics()
        positions = {each.id: self._read(each, topics) for each in self._graph.processors}
        self._check_members(self._graph.processors)
        return encode(self._graph.name, positions, topics)

    def plan_reset(self, processor_id: str, target: ResetTarget) -> list[Move]:
        """Returns the moves of a reset of one processor.

        Raises UserMistake if its group has members or an offset is not in the log.
        """
        processor = select(self._graph, processor_id)
        topics = self._topics()
        self._check_members([processor])
        old = self._read(processor, topics)
        partitions = partitions_of(processor, topics)
        starts, ends = self._cluster.starts(partitions), self._cluster.ends(partitions)
        if target.offsets is not None:
            new = target.offsets
        elif target.since is not None:
            new = self._cluster.starts(partitions, target.since)
        else:
            new = starts if target.end == BEGINNING else ends
        check_targets(processor, new, topics, starts, ends)
        self._snapshots(processor, topics, old | new, {tp.partition for tp in new})
        return moves_of(processor, old, new)

    def plan_restore(self, text: str, file: str) -> list[Move]:
        """Returns the moves of a restore from a file; positions that are not in the file stay.

        Raises UserMistake if a group has members, or the file is not of this graph and these topics.
        """
        topics = self._topics()
        saved = decode(text, file, self._graph, topics)
        self._check_members(self._graph.processors)
        moves = []
        for processor in self._graph.processors:
            new, old = saved.get(processor.id, {}), self._read(processor, topics)
            partitions = partitions_of(processor, topics)
            check_targets(processor, new, topics, self._cluster.starts(partitions), self._cluster.ends(partitions))
            self._snapshots(processor, topics, old | new, {tp.partition for tp in new})
            moves += moves_of(processor, old, new)
        return moves

    def consequences(self, moves: Sequence[Move]) -> list[str]:
        """Returns the consequences of moves, a line each."""
        topics = self._topics()
        committed = {
            each.id: self._read(each, topics)
            for each in self._graph.processors
            if any(move.processor == each.id for move in moves)
        }
        return [*describe_consequences(self._graph, self._environment, topics, committed, moves)]

    def move(self, moves: Sequence[Move]) -> None:
        """Sets all positions, or none. Raises UserMistake if one has changed since it was read."""
        processors = [select(self._graph, name) for name in dict.fromkeys(move.processor for move in moves)]
        topics = check_topics(self._graph, self._cluster)
        new = {each.id: {m.partition: m.new for m in moves if m.processor == each.id} for each in processors}
        self._check_members(processors)
        records: list[Output] = []
        for processor in processors:
            old = self._read(processor, topics)
            if any(old.get(m.partition) != m.old for m in moves if m.processor == processor.id):
                raise UserMistake(f"positions of {processor.id!r} have changed since they were shown: {UNCHANGED}")
            records += self._records_of(processor, topics, old, new[processor.id])
        producer = self._cluster.producer(TRANSACTIONAL, self._id)
        try:
            self._attempts.call(producer.init_transactions)
            self._transact(producer, processors, new, records)
        except OutcomeUnknown as error:
            raise BrokerUnavailable(
                f"it is unknown whether the positions were set ({error}): run the command again with --dry-run"
            ) from None
        except ClientError as error:
            raise BrokerUnavailable(f"the positions cannot be set ({error}): {UNCHANGED}; try again") from None
        finally:
            producer.drop()
        for processor in processors:
            if (delivered := self._graph.delivered(processor)) is not None:
                self._forget(processor.cluster, delivered, {tp.partition for tp in new[processor.id]})

    def _forget(self, place: str, delivered: str, numbers: Collection[int]) -> None:
        """Deletes the records of earlier deliveries on another cluster: the journals no longer match them.

        No transaction spans both clusters, so this comes last: a start in between ends with RecoveryUndecidable.
        """
        producer = self._cluster.named(place).producer(IDEMPOTENT, self._id)
        try:
            self._attempts.call(lambda: producer.write([forgotten_record(delivered, each) for each in sorted(numbers)]))
            self._attempts.call(producer.flush)
        except ClientError as error:
            raise BrokerUnavailable(
                f"the positions are set, but cluster {place!r} keeps the records of earlier deliveries ({error}): run "
                "the command again"
            ) from None
        finally:
            producer.drop()

    def _transact(
        self, producer: Producer, processors: Sequence[Processor], new: Mapping[str, Positions], records: list[Output]
    ) -> None:
        """Commits positions and records in one transaction, so that a joining member sees all of them or none."""
        self._attempts.call(producer.begin_transaction)
        try:
            for processor in processors:
                with self._committed.opened(processor) as consumer:
                    producer.send_offsets(new[processor.id], consumer)
            producer.write(records)
            producer.flush()
            # a member that joins after this check waits until the transaction has ended
            self._check_members(processors)
        except KStreamsError:
            with suppress(ClientError):
                producer.abort_transaction()
            raise
        producer.commit_transaction()

    def _records_of(
        self, processor: Processor, topics: Mapping[str, TopicInfo], old: Positions, new: Positions
    ) -> list[Output]:
        """Returns the records that belong to a processor's positions: for its beginnings, state and journal."""
        numbers = {tp.partition for tp in new}
        begun, _ = read_begun(self._cluster, self._graph.beginnings)
        found = [
            begun_record(self._graph.beginnings, named, topics[tp.topic].partitions)
            for tp in new
            if (named := BegunPartition(processor.id, tp.topic, topics[tp.topic].topic_id, tp.partition)) not in begun
        ]
        if (changelog := changelog_of(self._graph.name, processor)) is not None:  # an empty state may begin there
            states = states_begun(begun, processor.id, changelog)
            found += [forgotten_state(self._graph.beginnings, each) for each in states if each.partition in numbers]
        journal = self._graph.journal_topic(processor)
        if journal is None:
            return found
        if processor.journal is None:
            return found + ChoicesJournal(journal, self._cluster).records(dict.fromkeys(numbers, Choices()))
        return found + [
            snapshot_record(journal, each) for each in self._snapshots(processor, topics, old | new, numbers)
        ]

    def _snapshots(
        self, processor: Processor, topics: Mapping[str, TopicInfo], positions: Positions, numbers: set[int]
    ) -> list[Snapshot]:
        """Returns a snapshot of each of these tasks at its positions; none for a processor without a journal.

        Raises UserMistake if an input of a task has no position.
        """
        if processor.journal is None:
            return []
        found = []
        for number in sorted(numbers):
            places = sorted(TopicPartition(topic.name, number) for topic in processor.inputs)
            if missing := [tp for tp in places if tp not in positions]:
                raise UserMistake(
                    f"{missing[0]} has no position, and a snapshot names all inputs: name its offset with --to-offset, "
                    f"too: {UNCHANGED}"
                )
            inputs = tuple(InputStart(tp.topic, topics[tp.topic].topic_id, positions[tp]) for tp in places)
            found.append(Snapshot(self._committed.group(processor), number, inputs))
        return found

    def _read(self, processor: Processor, topics: Mapping[str, TopicInfo]) -> Positions:
        """Returns the committed offsets of a processor. Raises UserMistake while a transaction holds one of them."""
        group, partitions = self._committed.group(processor), partitions_of(processor, topics)
        # with a pending offset, a consumer would repeat its request until its limit
        if (pending := self._cluster.pending(group, partitions)).partitions:
            find = find_command_at(self._environment.settings.bootstrap_servers)
            raise UserMistake(f"{pending.describe(time.time(), find)}: {UNCHANGED}")
        return self._committed.read(processor, partitions)

    def _topics(self) -> dict[str, TopicInfo]:
        """Returns the inputs of the graph. Raises TopicError if one is missing."""
        names = {topic.name for processor in self._graph.processors for topic in processor.inputs}
        return find_all_topics(self._graph, self._cluster, sorted(names))

    def _check_members(self, processors: Sequence[Processor]) -> None:
        groups = self._admin.describe([self._committed.group(each) for each in processors])
        check_no_members(groups, self._name, groups.keys())
