"""Writes outputs and marks in one transaction, and allows one replay of a graph at a time.

The transactional id is `<graph>.dead-letters`. A second replay fences the first, waits until the first one's
transaction has ended, and only then reads the marks.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    ClientError,
    Fenced,
    KStreamsError,
    OutcomeUnknown,
    Refused,
    Replaced,
    Retriable,
)
from kstreams_py.graph.names import replay_id
from kstreams_py.graph.sink import Row
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TRANSACTIONAL, Output, Producer
from kstreams_py.kafka.own_topics import ensure_topics
from kstreams_py.kafka.sizes import batch_bytes
from kstreams_py.kafka.transactions import find_command_at
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.dead_letters.letters import Letter, LetterPlace, Mark
from kstreams_py.processing.dead_letters.marks import MARKS_SETTINGS, begin_record, deletion_record, mark_record
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

MARKS_MAX: Final = 10_000
"""The maximum number of marks that a transaction without outputs writes or deletes."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished step: its dead letter, the places of all dead letters of its delivery, its outputs, its rows."""

    letter: Letter
    places: Sequence[LetterPlace]
    outputs: Sequence[Output]
    rows: Sequence[Row] = ()


class ReplayTransactions:
    """The producer of a replay or a discard, and the marks that it has found."""

    def __init__(
        self, graph: Graph, reader: LetterReader, environment: Environment, *, takes_discarded: bool = False
    ) -> None:
        """Makes no request.

        - `takes_discarded`: dead letters that are marked as discarded count as waiting.
        """
        self._graph = graph
        self._takes_discarded = takes_discarded
        self._id = replay_id(graph.name)
        self._reader = reader
        self._environment = environment
        self._cluster = environment.cluster
        self._attempts = Attempts(self._id, self._id, environment.sleep)
        self._producer: Producer | None = None
        self._open = False
        self._batch_bytes: int | None = None
        self.marks: dict[LetterPlace, Mark] = {}
        """The marks that existed when this producer started. No other producer writes marks while it is in use."""

    def start(self) -> None:
        """Fences the previous replay, waits for the end of its transaction, then reads the marks.

        Raises Replaced if another replay begins meanwhile, BrokerUnavailable if the marks cannot be read to their end.
        """
        ensure_topics(self._cluster, {self._graph.replayed: (1, MARKS_SETTINGS)})
        self._reader.expect_marks()
        # leave out topics of other clusters: a user without a right to their names here would be refused
        own = (topic for processor in self._graph.processors for topic in processor.outputs if not topic.cluster)
        written = {topic.name for topic in own}
        self._batch_bytes = batch_bytes(self._cluster.topics([*written, self._graph.replayed]).values())
        self._renew()
        gone = self._reader.deleted(self.marks)
        for first in range(0, len(gone), MARKS_MAX):
            self._write(partial(self._deletions, gone[first : first + MARKS_MAX]))

    def commit(self, steps: Sequence[Done]) -> None:
        """Writes the outputs of steps and the marks of their dead letters in one transaction.

        Raises Refused if a topic refuses an output: then nothing is written. Raises Replaced if another replay began.
        """
        self._write(partial(self._records, steps))

    def mark(self, marks: Mapping[LetterPlace, Output]) -> None:
        """Writes the marks of dead letters that have no mark yet, up to MARKS_MAX in a transaction.

        Raises Replaced if a replay or another discard began.
        """
        left = list(marks.items())
        for first in range(0, len(left), MARKS_MAX):
            self._write(partial(self._missing, left[first : first + MARKS_MAX]))

    def write(self, outputs: Sequence[Output]) -> None:
        """Writes records in one transaction; if the broker does not answer, they may be written twice."""
        self._write(lambda: outputs)

    def _records(self, steps: Sequence[Done]) -> list[Output]:
        """Returns the outputs and the marks of the steps that have no mark yet."""
        left = [step for step in steps if self.marks.keys().isdisjoint(step.places)]
        topic, topics = self._graph.replayed, self._reader.topics
        outputs = [output for step in left for output in step.outputs]
        return outputs + [mark_record(topic, place, step.letter, topics) for step in left for place in step.places]

    def _missing(self, marks: Sequence[tuple[LetterPlace, Output]]) -> list[Output]:
        return [mark for place, mark in marks if place not in self.marks]

    def _deletions(self, places: Sequence[LetterPlace]) -> list[Output]:
        """Returns tombstones for the existing marks of these places."""
        topic, topics = self._graph.replayed, self._reader.topics
        return [deletion_record(topic, place, topics) for place in places if place in self.marks]

    def _write(self, records: Callable[[], Sequence[Output]]) -> None:
        """Writes one transaction, and repeats it until it succeeds.

        - `records`: returns the records that are still to be written, according to the marks.

        Each new producer reads the marks again: the last transaction may be committed, or another replay may have run.
        """
        while True:
            try:
                if self._of_client.tainted:
                    # a timed-out request may reach the broker late, and end a later transaction of the same epoch
                    self._renew()
                if left := records():
                    self._transact(left)
            except Refused:
                if not self._abort():
                    self._renew()
                raise
            except (Retriable, Abortable, OutcomeUnknown) as error:
                self._attempts.failed(error, "going back to the marks")
                if isinstance(error, OutcomeUnknown) or not self._abort():
                    self._renew()
            except Fenced as error:
                raise self._replaced(error) from None
            else:
                self._attempts.committed()
                return

    def end(self) -> None:
        """Aborts the open transaction, if any, and drops the producer."""
        if self._open:
            with suppress(KStreamsError):  # the error that ends the replay has already been raised
                self._abort()
        if self._producer is not None:
            self._producer.drop()
            self._producer = None

    def _renew(self) -> None:
        """Starts a new producer, which ends the previous one's transaction, and reads the marks."""
        while True:
            if self._producer is not None:
                self._producer.drop()
            self._producer, self._open = None, False
            self._attempts.next_producer()
            try:
                self._producer = self._cluster.producer(TRANSACTIONAL, self._id, self._batch_bytes)
                self._attempts.call(self._producer.init_transactions)
                self._read_marks()
            except Fenced as error:
                raise self._replaced(error) from None
            except Refused as refused:
                raise refused.mistake from None
            except (Retriable, Abortable, OutcomeUnknown) as error:
                self._attempts.producer_failed(error)
                continue
            self._attempts.producer_started()
            return

    def _read_marks(self) -> None:
        """Reads the marks as soon as a record that was written after all of them can be read.

        A hanging transaction in the partition would hide marks, and their dead letters would be replayed twice.
        """
        token, tp = uuid.uuid4().hex.encode(), TopicPartition(self._graph.replayed, 0)
        self._transact([begin_record(tp.topic, token)])
        deadline = self._environment.clock() + self._environment.settings.request_timeout_ms / 1000
        while (newest := self._cluster.newest(tp)) is None or newest.value() != token:
            if self._environment.clock() > deadline:
                find = find_command_at(self._environment.settings.bootstrap_servers, [tp.topic])
                raise BrokerUnavailable(
                    f"{tp}: cannot read the record just committed: a hanging transaction hides which dead letters "
                    f"are replayed: `{find}` prints the command that ends it; then start again"
                )
            self._environment.sleep(0.01)
        self.marks = self._reader.marks(discards=not self._takes_discarded)

    def _transact(self, outputs: Sequence[Output]) -> None:
        producer = self._of_client
        self._attempts.call(producer.begin_transaction)
        self._open = True
        queue = list(outputs)  # `write` removes the records that it has queued, even when it raises
        self._attempts.call(lambda: producer.write(queue))
        producer.commit_transaction()
        self._open = False

    def _abort(self) -> bool:
        """Aborts. Returns False if the producer has to be replaced."""
        self._open = False
        try:
            self._of_client.abort_transaction()
        except Fenced as error:
            raise self._replaced(error) from None
        except ClientError as error:
            logger.info("%s: %s; starting a new producer", self._id, error)
            return False
        return True

    @property
    def _of_client(self) -> Producer:
        assert self._producer is not None, "the replay was not started"
        return self._producer

    def _replaced(self, error: Fenced) -> Replaced:
        with suppress(KStreamsError):
            if self._producer is not None:
                self._producer.drop()
        self._producer, self._open = None, False
        return Replaced(
            f"another replay or discard of graph {self._graph.name!r} has begun, or a transaction took longer than "
            f"transaction_timeout_ms ({error}): the committed dead letters are marked; start again for the rest"
        )
