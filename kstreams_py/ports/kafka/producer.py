"""confluent-kafka's producer as delivery.Producer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py import delivery
from kstreams_py.errors import (
    Abortable,
    Fenced,
    KStreamsError,
    LogError,
    NotAuthorized,
    OutcomeUnknown,
    Refused,
    Retriable,
)
from kstreams_py.ports.kafka.clients import end, made
from kstreams_py.ports.kafka.consumer import PATIENCE_SECONDS, KafkaConsumer, partitions_of
from kstreams_py.ports.kafka.errors import (
    REFUSED,
    ClientLog,
    E,
    log_error,
    may_be_written,
    naming,
    record_refused,
)
from kstreams_py.ports.kafka.topics import MISSING, described, is_missing, no_such_topic
from kstreams_py.record import Positions

ABORT_FLUSH_SECONDS: Final = 5.0
"""How long an abort waits for what is on its way; a new producer does without."""

FAILED_FLUSH_SECONDS: Final = 0.1
"""The same where a record has failed: librdkafka sends what was behind it again and again, until it times out."""

FLUSH_SECONDS: Final = 0.001
"""Of one flush, after which it is looked whether all has been acknowledged."""

PATIENCE_KEPT: Final = 0.9
"""How much of the patience with a coordinator is left after an answer that came soon."""

CALL_GRACE_SECONDS: Final = 1.0
"""How long a call may outlast the limit it was given."""

FAILURES_KEPT: Final = 100
"""Failed deliveries of one transaction, which is aborted whatever the others are."""

CHUNK_RECORDS: Final = 1_000
CHUNK_BYTES: Final = 500_000
"""What a producer without idempotence has under way: no more than one batch of a partition."""

CONNECT_SECONDS: Final = 1.0
"""How long a new producer waits for its first connection before it goes on all the same."""

SETTLING_SECONDS: Final = (0.05, 0.1, 0.2)
"""How long the coordinator is given to settle the transaction of a producer that was fenced."""


class KafkaProducer:
    """delivery.Producer on a real cluster."""

    def __init__(self, settings: Mapping[str, Any], limit: float, *, keeps_failed: bool = False) -> None:
        """With `keeps_failed`, the outputs that the broker refused go with `Refused`."""
        self._log = ClientLog("producer")
        self._failed: list[tuple[ck.KafkaError, str, delivery.Output | None]] = []
        self._has_failed = False
        """A delivery of this transaction has."""
        self._transactional = "transactional.id" in settings
        self._id = settings.get("transactional.id", "")
        self._written = set[str]()
        """The topics that were written to in this transaction."""
        self._idempotent = settings["enable.idempotence"]
        self._keeps_failed = keeps_failed
        self._limit = limit
        self._configuration = {**settings, "error_cb": self._log.on_error, "on_delivery": self._delivered}
        self._connect()

    def _connect(self) -> None:
        self._producer = made(ck.Producer, self._configuration, self._log)

    def _delivered(self, error: ck.KafkaError | None, message: Any) -> None:
        self._has_failed |= error is not None
        if error is not None and not (self._transactional and len(self._failed) >= FAILURES_KEPT):
            self._failed.append((error, message.topic(), None))

    def _output_delivered(self, output: delivery.Output, error: ck.KafkaError | None, _: Any) -> None:
        # the message of a report gives neither headers nor time back (measured)
        if error is not None:
            self._failed.append((error, output[0], output))

    @property
    def tainted(self) -> bool:
        try:
            self._poll(0)  # serves the log
        except LogError:
            return True
        return self._log.tainted

    def write(self, outputs: list[delivery.Output]) -> None:
        self._written |= {output[0] for output in outputs}
        if self._idempotent:
            self._queue(outputs)
            return
        while outputs:
            # librdkafka without idempotence sends a second batch of a partition while the first may still fail and be
            # sent again (measured, also with max.in.flight=1, and when the leader moves): so there is never a second
            self._acknowledge()
            size, chunk = 0, list[delivery.Output]()
            for output in outputs[:CHUNK_RECORDS]:
                size += len(output[1] or b"") + len(output[2] or b"") + 100
                if chunk and size > CHUNK_BYTES:
                    break
                chunk.append(output)
            del outputs[: len(chunk)]
            try:
                self._queue(chunk)
            finally:
                outputs[:0] = chunk

    def _acknowledge(self) -> None:
        """Waits until what is queued is acknowledged, before more follows."""
        if left := self._await_acknowledgements():
            raise self._failure() or Retriable(f"{left} records were not acknowledged within {self._limit:g} s")
        if self._failed and (failure := self._failure()) is not None:
            raise failure

    def _queue(self, outputs: list[delivery.Output]) -> None:
        produce: Callable[..., None] = self._produce_traced if self._keeps_failed else self._producer.produce
        done = 0
        try:
            while done < len(outputs):
                try:
                    for output in outputs[done:] if done else outputs:
                        produce(*output)
                        done += 1
                except BufferError:
                    self._await_room()
                except ck.KafkaException as error:
                    self._poll(0)  # serves the reports: a delivery that failed before may be why
                    if (failure := self._failure()) is not None:
                        raise failure from None
                    refused = self._refused(error.args[0], outputs[done])
                    done += isinstance(refused, Refused)  # it has the output
                    raise refused from None
        finally:
            del outputs[:done]

    def _produce_traced(self, *output: Any) -> None:
        produce: Callable[..., None] = self._producer.produce
        produce(*output[:4], partial(self._output_delivered, output), None, *output[6:])

    def _await_room(self) -> None:
        """Waits until the queue is shorter. Raises a LogError if the broker takes nothing within the limit."""
        queued, deadline = len(self._producer), time.monotonic() + self._limit
        while len(self._producer) >= queued:
            self._poll(0.02)
            if time.monotonic() > deadline:
                leaf = Abortable if self._transactional else Retriable
                raise leaf(f"the producer's queue stayed full for {self._limit:g} s")

    def _refused(self, error: ck.KafkaError, output: delivery.Output) -> Exception:
        if error.code() in REFUSED:
            return Refused(record_refused(error, output[0]), [output])
        if error.code() in MISSING:
            found = described(self._producer, output[0], self._limit)
            if found is not None and found.error is None and output[3] in found.partitions:
                return Retriable(f"writing to {output[0]}[{output[3]}]: it was not known yet")  # now it is
            if is_missing(found):
                return no_such_topic(output[0])
        if error.code() == E.TOPIC_EXCEPTION:  # a report of its delivery may say so instead, and comes to the same
            return Abortable(f"writing to {output[0]}: {error.str()} ({error.name()})")
        return log_error(error, f"writing to topic {output[0]!r}")

    def init_transactions(self) -> None:
        # measured: librdkafka asks again only after 500 ms, while it has no coordinator yet and while the coordinator
        # settles the transaction of whoever it has just fenced, which takes it 10; a new client asks at once
        self._await_connection()
        for seconds in SETTLING_SECONDS:
            try:
                self._producer.init_transactions(seconds)
                return
            except ck.KafkaException as error:
                if error.args[0].code() == E.CONCURRENT_TRANSACTIONS:
                    self._end()
                    self._connect()
                    self._await_connection()
        self._call(lambda client, limit: client.init_transactions(limit), "starting the producer")

    def _await_connection(self) -> None:
        with suppress(ck.KafkaException):
            self._producer.list_topics("__transaction_state", CONNECT_SECONDS)

    def begin_transaction(self) -> None:
        self._failed.clear()
        self._written.clear()
        self._has_failed = False
        try:
            self._producer.begin_transaction()
        except ck.KafkaException as error:
            doing = naming("beginning a transaction", error.args[0], transactional_id=self._id)
            raise log_error(error.args[0], doing) from None

    def send_offsets(self, positions: Positions, consumer: delivery.Consumer) -> None:
        assert isinstance(consumer, KafkaConsumer)
        metadata = consumer.group_metadata()
        patience, begun = min(consumer.patience, self._limit), time.monotonic()
        try:
            # the client would wait without end for a coordinator that is down, though the group has another by then
            self._call(
                lambda client, limit: client.send_offsets_to_transaction(partitions_of(positions), metadata, limit),
                "adding positions to the transaction",
                limit=patience,
                group=consumer.group,
                topics=[tp.topic for tp in positions],
            )
        finally:
            # small transactions between large ones must not bring it down, or those would be given up each time
            taken = time.monotonic() - begun
            consumer.patience = max(PATIENCE_SECONDS, 2 * taken, PATIENCE_KEPT * patience)

    def commit_transaction(self) -> None:
        if left := self._await_acknowledgements():
            raise self._failure() or Abortable(f"{left} records were not acknowledged within {self._limit:g} s")
        try:
            self._call(lambda client, limit: client.commit_transaction(limit), "committing the transaction")
        except Retriable as error:
            raise OutcomeUnknown(str(error)) from None

    def abort_transaction(self) -> None:
        # librdkafka #4849: an abort must not race what is on its way, and what is purged in flight leaves a gap in the
        # sequence numbers, at which the next transaction of the same epoch would fail
        seconds = FAILED_FLUSH_SECONDS if self._has_failed else ABORT_FLUSH_SECONDS
        left = self._drain(time.monotonic() + min(self._limit, seconds))
        self._failed.clear()
        if left:
            raise OutcomeUnknown(f"{left} records were neither sent nor refused before the abort")
        try:
            self._call(lambda client, limit: client.abort_transaction(limit), "aborting the transaction")
        except (Retriable, Abortable) as error:
            raise OutcomeUnknown(str(error)) from None

    def flush(self) -> None:
        left = self._await_acknowledgements()
        if (failure := self._failure()) is not None:
            raise failure
        if left:
            raise Retriable(f"{left} records wait for their acknowledgement, and none came within {self._limit:g} s")

    def _await_acknowledgements(self) -> int:
        """Waits until every record was acknowledged or has failed; how many are left once nothing moves any more."""
        left, before = self._drain(0.0), 0
        while left and left != before and self._is_whole():
            before, left = left, self._drain(time.monotonic() + self._limit, self._is_whole)
        return left

    def _is_whole(self) -> bool:
        """Whether it is worth waiting: a transaction of which a record has failed comes to an abort."""
        return not (self._transactional and self._has_failed)

    def _drain(self, deadline: float, going: Callable[[], bool] = lambda: True) -> int:
        """Sends what is queued without lingering, until the deadline or as long as `going`; how many are left.

        Where only failures are reported, one long flush would look every 10 ms whether all has been acknowledged.
        """
        try:
            while (left := self._producer.flush(FLUSH_SECONDS)) and going() and time.monotonic() < deadline:
                pass
        except ck.KafkaException as error:
            doing = naming("sending what is queued", error.args[0], topics=self._written, transactional_id=self._id)
            raise log_error(error.args[0], doing) from None
        return left

    def _failure(self) -> KStreamsError | None:
        """What the deliveries that failed since the last call come to; what no attempt mends comes first."""
        refused = [each for each in self._failed if each[0].code() in REFUSED]
        failed, self._failed = self._failed, []
        for error, topic, _ in failed:
            if isinstance(failure := log_error(error, f"writing to topic {topic!r}"), NotAuthorized):
                return failure
            may_be_missing = error.code() in MISSING | {E._MSG_TIMED_OUT}
            if may_be_missing and is_missing(described(self._producer, topic, self._limit)):
                return no_such_topic(topic)
        if refused:
            self._failed = [each for each in failed if each[0].code() not in REFUSED]
            error, topic, _ = next(
                (each for each in refused if each[0].code() != E._INVALID_DIFFERENT_RECORD), refused[0]
            )
            return Refused(record_refused(error, topic), [output for *_, output in refused if output is not None])
        if failed:
            kept = [each for each in failed if each[2] is not None and not may_be_written(each[0])]
            if kept:
                self._failed = [each for each in failed if each not in kept]
            error, topic, _ = (kept or failed)[0]
            return Abortable(f"writing to {topic}: {error.str()} ({error.name()})", [output for *_, output in kept])
        return None

    def drop(self) -> None:
        self._producer.purge(blocking=False)
        self._end()

    def _end(self) -> None:
        end([self.__dict__.pop("_producer")])

    def _poll(self, timeout: float) -> None:
        """Serves log and reports; where the client has failed for good, it raises here, whatever is asked of it."""
        try:
            self._producer.poll(timeout)
        except ck.KafkaException as error:
            doing = naming("serving the producer", error.args[0], topics=self._written, transactional_id=self._id)
            raise log_error(error.args[0], doing) from None

    def _call(
        self,
        call: Callable[[Any, float], object],
        doing: str,
        *,
        limit: float | None = None,
        group: str = "",
        topics: Collection[str] = (),
    ) -> None:
        """One call of the transactional API, in a thread of its own: not every one keeps its limit.

        librdkafka waits without end for positions to be added while it waits for a coordinator that no event announces.
        Such a thread is left behind. `call` must not hold the client: an error holds its frames, in a circle.
        """
        limit = self._limit if limit is None else limit
        outcome: list[ck.KafkaError | None] = []

        def run() -> None:
            try:
                call(self._producer, limit)
                outcome.append(None)
            except ck.KafkaException as error:
                outcome.append(error.args[0])  # the exception holds this frame, and so the client, in a circle

        thread = threading.Thread(target=run, name=doing, daemon=True)
        thread.start()
        deadline = time.monotonic() + limit + CALL_GRACE_SECONDS
        with suppress(LogError):  # the call itself will say so
            self._drain(deadline, thread.is_alive)  # while positions are added, what is queued is sent
        thread.join(max(0.0, deadline - time.monotonic()))
        if not outcome:
            raise OutcomeUnknown(f"{doing}: the client did not return within its own limit of {limit:g} s")
        if (error := outcome[0]) is not None:
            doing = naming(doing, error, topics=topics or self._written, group=group, transactional_id=self._id)
            leaf = log_error(error, doing)
            if not isinstance(leaf, Fenced):
                with suppress(NotAuthorized):  # a client that has failed for good says again why
                    self._poll(0)  # serves the reports of deliveries that failed
                cause = self._failure()
                leaf = leaf if cause is None or isinstance(cause, Abortable) else cause
            raise leaf from None
