"""Writes to the topics of a job: the results of its tasks, and dead letters."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kstreams_py.errors import Abortable, Fatal, OutcomeUnknown, RecordRefused, Refused, Retriable, SinkAway
from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.names import group_of
from kstreams_py.jobs.identity import Origin
from kstreams_py.kafka.contracts import TOPIC, Output, Producer, ProducerMode
from kstreams_py.kafka.sizes import record_limits
from kstreams_py.records import HASH_HEADER, KEEP, Headers, Message, Out
from kstreams_py.steps.dead_letters import DeadLetters, Failure
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.outputs import checked_headers, checked_timestamp, delivery_hash_of, encoder

MODE: Final = ProducerMode(transactional=False, acks=-1, may_repeat=False)
"""A record is in its topic, on all in-sync replicas, before its input is acknowledged. The producer gives back the
records that were refused.
"""


class TopicWriter:
    """Writes records to topics. The broker has acknowledged or refused each record before `write` returns.

    Each record has a delivery hash of its own in its headers.
    """

    def __init__(self, name: str, environment: Environment) -> None:
        """Makes no request. `name`: the name of the client."""
        self._open = partial(environment.cluster.producer, MODE, name)
        self._producer: Producer | None = None
        self._outputs: Sequence[Output] = ()
        """The records that are being written; they stay while the broker does not answer."""
        self._left: list[Output] = []
        """The records that the producer has not accepted yet."""
        self._apart = deque[Output]()
        """Records to be written one by one, because one of them is refused."""
        self._refused: dict[int, RecordRefused] = {}

    @property
    def is_writing(self) -> bool:
        """Whether the last `write` raised SinkAway: the next call then continues with the same records."""
        return bool(self._outputs)

    def write(self, outputs: Sequence[Output]) -> dict[int, RecordRefused]:
        """Writes records; returns the errors of the refused ones, by index.

        Raises SinkAway while the broker does not answer. The next call may then write records a second time.
        """
        if not self.is_writing:
            self._outputs, self._left, self._refused = outputs, [*outputs], {}
        try:
            while self._outputs:
                self._write_on()
        except (Retriable, Abortable, OutcomeUnknown, Fatal) as error:
            if not isinstance(error, Retriable):
                self.close()
                self._apart.clear()
                self._left = [each for index, each in enumerate(self._outputs) if index not in self._refused]
            raise SinkAway(f"writing to {', '.join({output[TOPIC] for output in outputs})}: {error}") from error
        return self._refused

    def _write_on(self) -> None:
        if self._producer is None:
            self._producer = self._open()
        try:
            if self._left:
                self._producer.write(self._left)
            self._producer.flush()
        except Refused as error:
            if len(error.outputs) == 1:
                digest = delivery_hash_of(error.outputs[0])  # the client returns a copy
                index = next(index for index, each in enumerate(self._outputs) if delivery_hash_of(each) == digest)
                self._refused[index] = error.mistake
            else:
                self._apart += error.outputs
            return
        if self._apart:
            self._left = [self._apart.popleft()]
        else:
            self._outputs = ()

    def close(self) -> None:
        """Ends the client."""
        if self._producer is not None:
            self._producer.drop()
            self._producer = None


class TopicOutputs:
    """Makes and writes the records of a task's results."""

    def __init__(self, graph: str, task: JobTask, environment: Environment) -> None:
        """Makes no request."""
        registry = environment.registry
        self.writer = TopicWriter(group_of(graph, task.id), environment)
        self._encode = {each.name: encoder(each.value, registry, f"{each.name}-value") for each in task.topics}
        self._encode_key = {each.name: encoder(each.key, registry, f"{each.name}-key") for each in task.topics}

    def make(self, topic: Topic, result: Any, origin: Origin) -> Output:
        """Returns the record of a result: a value, or an Out. Only an Out gives it a key, headers or a timestamp.

        Raises EncodeError, and whatever the serde raises.
        """
        out = result if isinstance(result, Out) else Out(result)
        value = None if out.value is None else self._encode[topic.name](out.value)
        key = None if out.key is KEEP or out.key is None else self._encode_key[topic.name](out.key)
        headers = [] if out.headers is KEEP else checked_headers(out.headers)
        timestamp = 0 if out.timestamp is KEEP else checked_timestamp(out.timestamp)
        return (topic.name, value, key, -1, None, None, timestamp, [*headers, (HASH_HEADER, origin)])


class FailedRecord(NamedTuple):
    """A record that a task could not process, or a segment made from it.

    - `origin`: the origin of the step that failed.
    - `trace`: the headers that carry the context of the record's trace.
    """

    record: Message
    task: str
    error: BaseException
    origin: Origin
    trace: Headers = ()


class TopicLetters:
    """Writes the dead letters of records, before the records are acknowledged."""

    def __init__(self, graph: str, topic: Topic, environment: Environment, reader: str) -> None:
        """Asks for the limits of the topic.

        - `topic`: the topic of the dead letters.
        - `reader`: the id of a task that reads the records: dead letters of records that reached no task name this one.
        """
        self._graph, self._topic, self.reader = graph, topic, reader
        self._encode = encoder(topic.value, environment.registry, f"{topic.name}-value")
        found = environment.cluster.topics([topic.name]).get(topic.name)
        self._limits = record_limits(found, environment.settings.kafka)
        self._writer = TopicWriter(f"{graph}.{topic.name}", environment)
        self._batch: list[FailedRecord] = []
        """The records whose dead letters are being written, and the dead letters that are not acknowledged."""
        self._outputs: list[Output] = []
        self._is_least = False
        """Whether the outputs are the smallest possible dead letters, in place of those that the topic refused."""

    def write(self, failed: Sequence[FailedRecord]) -> int:
        """Writes the dead letters of records. Returns how many records have one now: the first ones of the sequence.

        Raises SinkAway while the broker does not answer. If the topic refuses even the smallest possible dead letter,
        raises that refusal.
        """
        if not self._batch:
            # make the dead letters first: a batch without them would count as written
            outputs = [self._of(each, least=False) for each in failed]
            self._batch, self._outputs, self._is_least = [*failed], outputs, False
        while self._outputs:
            refused = self._writer.write(self._outputs)
            if refused and self._is_least:
                raise next(iter(refused.values()))
            outputs = [self._of(self._batch[index], least=True) for index in sorted(refused)]
            self._outputs, self._is_least = outputs, bool(refused)
        count, self._batch = len(self._batch), []
        return count

    def _of(self, failed: FailedRecord, *, least: bool) -> Output:
        name = group_of(self._graph, failed.task)
        trace = None if not failed.trace else lambda: failed.trace
        letters = DeadLetters(name, self._topic.name, self._encode, time.time, self._limits, trace)
        return letters.of(Failure((failed.record,), failed.origin, failed.error), least=least)

    def close(self) -> None:
        """Ends the client."""
        self._writer.close()
