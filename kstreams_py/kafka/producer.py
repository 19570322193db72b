"""Implements contracts.Producer with confluent-kafka."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.errors import (
    Abortable,
    ClientError,
    Fenced,
    KStreamsError,
    NotAuthorized,
    OutcomeUnknown,
    Refused,
    Retriable,
)
from kstreams_py.forks import leave_to_this_process
from kstreams_py.kafka import contracts
from kstreams_py.kafka.clients import Caller, end, new_client
from kstreams_py.kafka.consumer import PATIENCE_SECONDS, KafkaConsumer, partitions_of
from kstreams_py.kafka.contracts import KEY, PARTITION, REPORT, TOPIC, VALUE
from kstreams_py.kafka.errors import (
    REFUSED,
    UNREACHABLE,
    ClientLog,
    E,
    classify,
    may_be_written,
    name_object,
    record_refused,
)
from kstreams_py.kafka.topics import MISSING, describe_topic, is_missing, no_such_topic
from kstreams_py.records import Positions

ABORT_FLUSH_SECONDS: Final = 5.0
"""Seconds that an abort waits for queued records; if some are left, the producer is replaced instead."""

FAILED_FLUSH_SECONDS: Final = 0.1
"""The same limit after a failed delivery: librdkafka sends the records behind it repeatedly, until they time out."""

FLUSH_SECONDS: Final = 0.001
"""Limit of one flush, in seconds, after which the producer checks whether all records are acknowledged."""

PATIENCE_KEPT: Final = 0.9
"""The factor by which a quick answer reduces KafkaConsumer.patience."""

CALL_GRACE_SECONDS: Final = 3.0
"""Seconds by which a call may exceed its limit; when it adds offsets, librdkafka notices the limit 0.5 to 1 s late."""

REFUSED_SECONDS: Final = 1.0
"""Seconds to wait for a record's delivery report after a call that failed for a missing right, and after a purge."""

FAILURES_KEPT: Final = 100
"""The maximum number of failed deliveries that are kept of one transaction, which is aborted in any case."""

PURGED_SECONDS: Final = 0.2
"""Seconds for which a dropped producer waits for the reports of its records (measured: 58 ms for 20,000)."""

CHUNK_RECORDS: Final = 1_000
CHUNK_BYTES: Final = 500_000
"""Limits of what a producer without idempotence queues at once, so that a partition has at most one batch in flight."""

CONNECT_SECONDS: Final = 1.0
"""Seconds that a new producer waits for its first connection, before it continues without one."""

SETTLING_SECONDS: Final = (0.05, 0.1, 0.2)
"""Limit, in seconds, of each attempt to start while the coordinator ends the transaction of a fenced producer."""


class KafkaProducer:
    """contracts.Producer on a real cluster."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        limit: float,
        *,
        keeps_failed: bool = False,
        reports: bool = False,
        place: str = "",
    ) -> None:
        """Makes a client.

        - `settings`: the client's settings.
        - `limit`: seconds that a request may take, and that the broker may spend without progress.
        - `keeps_failed`: the exceptions Refused and Abortable carry the outputs that may be written again.
        - `reports`: outputs may have their own callback.
        - `place`: the cluster and its address, for errors; "" to name neither.
        """
        self._log = ClientLog("producer")
        self._failed: list[tuple[ck.KafkaError, str, contracts.Output | None]] = []
        self._has_failed = False
        """Whether a delivery of this transaction has failed, other than by a purge."""
        self._purged: list[tuple[ck.KafkaError, str, contracts.Output | None]] = []
        """The first record of this transaction that the client purged; a purge is never the cause of the failure."""
        self.lost = Counter[str]()
        self._transactional = "transactional.id" in settings
        self._id = settings.get("transactional.id", "")
        self._written = set[str]()
        """The topics that this transaction has written to."""
        self._idempotent = settings["enable.idempotence"]
        self._keeps_failed = keeps_failed
        self._reports = reports
        self._place = place
        self._limit = limit
        self._caller: Caller | None = None
        """Makes the calls of the transactional API; None before the first one."""
        self._configuration = {**settings, "error_cb": self._log.on_error, "on_delivery": self._delivered}
        leave_to_this_process(self)
        self._connect()

    def _connect(self) -> None:
        self._producer = new_client(ck.Producer, self._configuration, self._log)

    def _delivered(self, error: ck.KafkaError | None, message: Any) -> None:
        if error is not None and error.code() == E._PURGE_QUEUE:
            # a batch that fails purges the records behind it, which may be reported before it (measured: 1 in 60)
            self._purged = self._purged or [(error, message.topic(), None)]
            return
        self._has_failed |= error is not None
        if error is not None and not (self._transactional and len(self._failed) >= FAILURES_KEPT):
            self._failed.append((error, message.topic(), None))

    def _output_delivered(self, output: contracts.Output, error: ck.KafkaError | None, _: Any) -> None:
        # the message of a delivery report has neither headers nor timestamp (measured)
        if error is not None:
            self._failed.append((error, output[TOPIC], output))
            self.lost[output[TOPIC]] += 1  # until it is returned

    def _reported(self, report: contracts.Report, error: ck.KafkaError | None, message: Any) -> None:
        self._delivered(error, message)
        report(error, message)

    @property
    def tainted(self) -> bool:
        try:
            self._poll(0)  # serves the log
        except ClientError:
            return True
        return self._log.tainted

    def write(self, outputs: list[contracts.Output]) -> None:
        self._written |= {output[TOPIC] for output in outputs}
        if self._idempotent:
            self._queue(outputs)
            return
        while outputs:
            # without idempotence, librdkafka sends a second batch of a partition while the first may still fail and be
            # sent again (measured, also with max.in.flight=1, and when the leader moves): so only one batch is queued
            self._acknowledge()
            size, chunk = 0, list[contracts.Output]()
            for output in outputs[:CHUNK_RECORDS]:
                size += len(output[VALUE] or b"") + len(output[KEY] or b"") + 100
                if chunk and size > CHUNK_BYTES:
                    break
                chunk.append(output)
            del outputs[: len(chunk)]
            try:
                self._queue(chunk)
            finally:
                outputs[:0] = chunk

    def _acknowledge(self) -> None:
        """Waits until all queued records are acknowledged. Raises the error of a record that is not."""
        if left := self._await_acknowledgements():
            text = f"{left} records were not acknowledged within {self._limit:g} s"
            raise self._take_failure() or Retriable(self._unanswered(text))
        if self._failed and (failure := self._take_failure()) is not None:
            raise failure

    def _queue(self, outputs: list[contracts.Output]) -> None:
        done = 0
        try:
            while done < len(outputs):
                taken, error = self._produce(outputs[done:] if done else outputs)
                done += taken
                if error is None:
                    continue
                if error.code() == E._QUEUE_FULL:
                    self._await_space()
                    continue
                self._poll(0)  # raises the reason of a client that has failed for good
                self._await_reports(0.0)  # an earlier failed delivery may be the reason
                if (failure := self._take_failure()) is not None:
                    raise failure
                refused = self._classify_refusal(error, outputs[done])
                done += isinstance(refused, Refused)  # the exception carries the output
                raise refused
        finally:
            del outputs[:done]

    def _produce(self, outputs: list[contracts.Output]) -> tuple[int, ck.KafkaError | None]:
        """Hands outputs to the client until it refuses one; returns how many it took, and the error, if any.

        Does not raise the error: an exception would keep this frame alive, and with it the client, which could not end.
        """
        produce: Callable[..., None] = self._producer.produce
        if self._keeps_failed:
            produce = self._produce_traced
        elif self._reports:
            produce = self._produce_reported
        done = 0
        try:
            for output in outputs:
                produce(*output)
                done += 1
        except BufferError:
            return done, ck.KafkaError(E._QUEUE_FULL)
        except ck.KafkaException as error:
            return done, error.args[0]
        return done, None

    def _produce_traced(self, *output: Any) -> None:
        produce: Callable[..., None] = self._producer.produce
        produce(*output[:4], partial(self._output_delivered, output), None, *output[6:])

    def _produce_reported(self, *output: Any) -> None:
        # librdkafka calls an output's own callback instead of the client's, which records failures
        produce: Callable[..., None] = self._producer.produce
        report = None if output[REPORT] is None else partial(self._reported, output[REPORT])
        produce(*output[:4], report, None, *output[6:])

    def _await_space(self) -> None:
        """Waits until the queue is shorter. Raises a ClientError if the broker accepts nothing within the limit."""
        queued, deadline = len(self._producer), time.monotonic() + self._limit
        while len(self._producer) >= queued:
            self._poll(0.02)
            if time.monotonic() > deadline:
                leaf = Abortable if self._transactional else Retriable
                raise leaf(self._unanswered(f"the producer's queue stayed full for {self._limit:g} s"))

    def _classify_refusal(self, error: ck.KafkaError, output: contracts.Output) -> Exception:
        if error.code() in REFUSED:
            return Refused(record_refused(error, output[TOPIC]), [output])
        if error.code() in MISSING:
            found = describe_topic(self._producer, output[TOPIC], self._limit)
            if found is not None and found.error is None and output[PARTITION] in found.partitions:
                return Retriable(
                    f"writing to {output[TOPIC]}[{output[PARTITION]}]: the client did not know the partition yet"
                )
            if is_missing(found):
                return no_such_topic(output[TOPIC])
        if error.code() in MISSING | {E.TOPIC_EXCEPTION}:  # as in `_take_failure`: a report may have the error instead
            return Abortable(f"writing to {output[TOPIC]}: {error.str()} ({error.name()})")
        return classify(error, f"writing to topic {output[TOPIC]!r}")

    def init_transactions(self) -> None:
        # measured: librdkafka retries only after 500 ms, both without a coordinator and while the coordinator ends the
        # transaction of the producer just fenced, which takes 10 ms; a new client asks immediately
        self._await_connection()
        for seconds in SETTLING_SECONDS:
            try:
                self._producer.init_transactions(seconds)
                return
            except ck.KafkaException as error:
                if error.args[0].code() == E.CONCURRENT_TRANSACTIONS:
                    left = [self._producer]
                    self._connect()  # first: if it gets no token, the earlier client stays
                    self._end_caller()
                    end(left)
                    self._await_connection()
        self._call(lambda client, limit: client.init_transactions(limit), "starting the producer")

    def _await_connection(self) -> None:
        with suppress(ck.KafkaException):
            self._producer.list_topics("__transaction_state", CONNECT_SECONDS)

    def begin_transaction(self) -> None:
        self._failed.clear()
        self._purged.clear()
        self._written.clear()
        self._log.refused.clear()
        self._has_failed = False
        try:
            self._producer.begin_transaction()
        except ck.KafkaException as error:
            raise self._classify(error.args[0], "beginning a transaction") from None

    def send_offsets(self, positions: Positions, consumer: contracts.Consumer) -> None:
        assert isinstance(consumer, KafkaConsumer)
        metadata = consumer.group_metadata()
        patience, begun = min(consumer.patience, self._limit), time.monotonic()
        try:
            # the client would wait forever for a coordinator that is down, although the group has a new one by then
            self._call(
                lambda client, limit: client.send_offsets_to_transaction(partitions_of(positions), metadata, limit),
                "adding offsets to the transaction",
                limit=patience,
                group=consumer.group,
                topics=[tp.topic for tp in positions],
            )
        finally:
            # decreases slowly: after small transactions, the limit must still be long enough for a large one
            taken = time.monotonic() - begun
            consumer.patience = max(PATIENCE_SECONDS, 2 * taken, PATIENCE_KEPT * patience)

    def commit_transaction(self) -> None:
        if left := self._await_acknowledgements():
            text = f"{left} records were not acknowledged within {self._limit:g} s"
            raise self._take_failure() or Abortable(self._unanswered(text))
        try:
            self._call(lambda client, limit: client.commit_transaction(limit), "committing the transaction")
        except Retriable as error:
            raise OutcomeUnknown(str(error)) from None

    def abort_transaction(self) -> None:
        # librdkafka #4849: an abort must not race records in flight; purging them leaves a gap in the sequence numbers,
        # at which the next transaction of the same epoch would fail
        seconds = FAILED_FLUSH_SECONDS if self._has_failed else ABORT_FLUSH_SECONDS
        left = self._drain(time.monotonic() + min(self._limit, seconds))
        self._failed.clear()
        self._purged.clear()
        if left:
            raise OutcomeUnknown(f"{left} records were neither sent nor refused before the abort")
        try:
            self._call(lambda client, limit: client.abort_transaction(limit), "aborting the transaction")
        except (Retriable, Abortable) as error:
            raise OutcomeUnknown(str(error)) from None

    def flush(self) -> None:
        left = self._await_acknowledgements()
        if (failure := self._take_failure()) is not None:
            raise failure
        if left:
            text = f"{left} records wait for their acknowledgement, and none arrived within {self._limit:g} s"
            raise Retriable(self._unanswered(text))

    def _await_acknowledgements(self) -> int:
        """Waits for acknowledgements or failures as long as some arrive; returns how many records have neither."""
        left, before = self._drain(0.0), 0
        while left and left != before and self._is_whole():
            before, left = left, self._drain(time.monotonic() + self._limit, self._is_whole)
        return left

    def _is_whole(self) -> bool:
        """Returns whether no delivery of the transaction has failed; otherwise it is aborted without a wait."""
        return not (self._transactional and self._has_failed)

    def _drain(self, deadline: float, going: Callable[[], bool] = lambda: True) -> int:
        """Sends queued records without lingering, until the deadline and while `going`; returns how many are left.

        Because successes are not reported, flush() checks only every 10 ms: many short calls end before a long one.
        """
        try:
            while (left := self._producer.flush(FLUSH_SECONDS)) and going() and time.monotonic() < deadline:
                pass
        except ck.KafkaException as error:
            raise self._classify(error.args[0], "sending queued records") from None
        return left

    def _take_failure(self) -> KStreamsError | None:
        """Returns the exception for deliveries that failed since the last call, permanent errors first; or None."""
        refused = [each for each in self._failed if each[0].code() in REFUSED]
        failed, self._failed, self._purged = self._failed or self._purged, [], []
        for error, topic, _ in failed:
            if isinstance(failure := classify(error, f"writing to topic {topic!r}"), NotAuthorized):
                return failure
        if failed and self._log.refused:  # then the client purges all records of the transaction, and reports only that
            return self._classify(ck.KafkaError(E.TOPIC_AUTHORIZATION_FAILED), "writing")
        unanswered = False
        # once for each topic: if no broker answers, each request takes the whole limit
        for topic in dict.fromkeys(each[1] for each in failed if each[0].code() in MISSING | {E._MSG_TIMED_OUT}):
            found = describe_topic(self._producer, topic, self._limit)
            if is_missing(found):
                return no_such_topic(topic)
            if unanswered := found is None:
                break
        if refused:
            self._failed = [each for each in failed if each[0].code() not in REFUSED]
            error, topic, _ = next(
                (each for each in refused if each[0].code() != E._INVALID_DIFFERENT_RECORD), refused[0]
            )
            returned = [output for *_, output in refused if output is not None]
            self.lost.subtract(output[TOPIC] for output in returned)
            return Refused(record_refused(error, topic), returned)
        if failed:
            kept = [each for each in failed if each[2] is not None and not may_be_written(each[0])]
            self.lost.subtract(each[1] for each in kept)
            if kept:
                self._failed = [each for each in failed if each not in kept]
            error, topic, _ = (kept or failed)[0]
            text = f"writing to {topic}: {error.str()} ({error.name()})"
            text = self._unanswered(text) if unanswered else text
            return Abortable(text, [output for *_, output in kept], unanswered=unanswered)
        return None

    def _unanswered(self, text: str) -> str:
        """Returns a text with the brokers that do not answer, and the last error of a connection to them, appended."""
        cause = f" ({self._log.connection})" if self._log.connection else ""
        return f"{text}: no answer from {self._place}{cause}" if self._place else text

    def drop(self) -> None:
        self._producer.purge(blocking=False)
        deadline = time.monotonic() + (PURGED_SECONDS if self._keeps_failed else 0.0)
        while len(self._producer) and time.monotonic() < deadline:
            with suppress(KStreamsError):  # a client that has failed for good raises its error
                self._poll(0.01)  # a flush would send what a thread of the client has not purged yet
        self.lost[""] += len(self._producer)
        self._end()

    def _end(self) -> None:
        self._end_caller()
        end([self.__dict__.pop("_producer")])

    def _end_caller(self) -> None:
        if self._caller is not None:
            self._caller.end()
            self._caller = None

    def _poll(self, timeout: float) -> None:
        """Serves the log and the delivery reports. Raises a ClientError once the client has failed for good."""
        try:
            self._producer.poll(timeout)
        except ck.KafkaException as error:
            raise self._classify(error.args[0], "serving the producer") from None

    def _classify(
        self, error: ck.KafkaError, doing: str, *, group: str = "", topics: Collection[str] = ()
    ) -> KStreamsError:
        """Returns the exception for a failed call; `topics`: the call's own, by default the topics written to."""
        # once a topic is refused, each later call gets that error, even one that adds the offsets of other topics
        named = self._log.refused or topics or self._written
        return classify(error, name_object(doing, error, topics=named, group=group, transactional_id=self._id))

    def _call(
        self,
        call: Callable[[Any, float], object],
        doing: str,
        *,
        limit: float | None = None,
        group: str = "",
        topics: Collection[str] = (),
    ) -> None:
        """Makes a call of the transactional API in another thread, because not every call keeps its limit.

        A call that adds offsets may wait forever for a coordinator: no event announces a new one to librdkafka.
        """
        limit = self._limit if limit is None else limit
        if self._caller is None:
            self._caller = Caller()
        deadline = time.monotonic() + limit + CALL_GRACE_SECONDS
        begun = self._caller.begin(partial(call, self._producer, limit))
        with suppress(ClientError):  # the call itself reports the error
            self._drain(deadline, begun.is_under_way)  # sends queued records while offsets are added
        try:
            error = begun.finish(max(0.0, deadline - time.monotonic()))
        except Empty:
            self._end_caller()
            doing = f"{doing}: the client did not return within its own limit of {limit:g} s"
            raise OutcomeUnknown(doing) from None
        if error is not None:
            self._await_reports(0.0)
            leaf = self._classify(error, doing, group=group, topics=topics)
            if isinstance(leaf, Retriable) and error.code() in UNREACHABLE:
                leaf = Retriable(self._unanswered(str(leaf)))
            if not isinstance(leaf, Fenced):
                if isinstance(leaf, NotAuthorized):
                    self._await_reports(REFUSED_SECONDS)
                cause = self._take_failure()
                leaf = leaf if cause is None or isinstance(cause, Abortable) else cause
            raise leaf from None

    def _await_reports(self, seconds: float) -> None:
        """Serves the log and the delivery reports, and waits for a failed delivery, longer if records were purged.

        A refused record makes each later call fail with its error, but without its topic.
        """
        with suppress(NotAuthorized):  # a client that has failed for good reports its error again
            self._poll(0)
            until = time.monotonic() + (REFUSED_SECONDS if self._purged else seconds)
            while len(self._producer) and not self._failed and time.monotonic() < until:
                self._poll(0.02)
