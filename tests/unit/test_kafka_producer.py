"""kafka/producer.py: events that no broker causes on request; the rest is in tests/contract/."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.errors import (
    Abortable,
    Fatal,
    Fenced,
    KStreamsError,
    NotAuthorized,
    OutcomeUnknown,
    RecordRefused,
    RecordTooLarge,
    Refused,
    Retriable,
    TopicError,
)
from kstreams_py.kafka import producer as module
from kstreams_py.kafka.consumer import PATIENCE_SECONDS, KafkaConsumer
from kstreams_py.kafka.contracts import Output
from kstreams_py.kafka.errors import RIGHTS
from kstreams_py.kafka.producer import ABORT_FLUSH_SECONDS, CHUNK_BYTES, CHUNK_RECORDS, FAILURES_KEPT, KafkaProducer
from kstreams_py.records import TopicPartition
from tests.unit.fakes import Read, client_error, metadata, raise_error

A0 = TopicPartition("a", 0)
CODES = ck.KafkaError

# Writing.


class Queue:
    """A producer's client with its own clock and a queue of `capacity` records; a flush sends up to `sends` of them."""

    on_delivery: Callable[[ck.KafkaError | None, Read], None]
    """The callback that KafkaProducer gives its client."""

    def __init__(self, *, capacity: int = 1_000_000, sends: int = 1_000_000) -> None:
        self.now = 0.0
        self.capacity = capacity
        self.sends = sends
        self.seconds: float | None = None
        """How long a flush takes; None: its whole limit."""
        self.queue: list[Output] = []
        self.batches: list[int] = []
        """The number of records that each flush sent."""
        self.refuses: dict[bytes, int] = {}
        """Values that `produce` refuses, with the error codes."""
        self.polled: list[float] = []
        self.reports: list[tuple[int, Read]] = []
        """Failed deliveries, which the next poll or flush reports."""
        self.topics: dict[str, int | None] = {}

    def monotonic(self) -> float:
        return self.now

    def __len__(self) -> int:
        return len(self.queue)

    def produce(self, *output: Any) -> None:
        if len(self.queue) >= self.capacity:
            raise BufferError
        if (code := self.refuses.get(output[1])) is not None:
            raise client_error(code)
        self.queue.append(output)

    def flush(self, seconds: float) -> int:
        self.now += seconds if self.seconds is None else self.seconds
        self._report()
        if sent := len(self.queue[: self.sends]):
            self.batches.append(sent)
            del self.queue[:sent]
        return len(self.queue)

    def poll(self, seconds: float) -> None:
        self.polled.append(seconds)
        self.now += seconds
        self._report()
        del self.queue[: self.sends]

    def _report(self) -> None:
        reports, self.reports = self.reports, []
        for code, m in reports:
            self.on_delivery(ck.KafkaError(code), m)

    def begin_transaction(self) -> None:
        pass

    def list_topics(self, topic: str, limit: float) -> Any:
        return metadata(topic, self.topics.get(topic))


NOT_ADDED = (
    'ADDPARTS [rdkafka#producer-1] [thrd:TxnCoordinator]: Failed to add partition "{}" [0] to transaction: '
    "Broker: Topic authorization failed"
)
TRANSACTIONAL = {"enable.idempotence": True, "transactional.id": "g.p.0"}
IDEMPOTENT = {"enable.idempotence": True}
PLAIN = {"enable.idempotence": False}


def producer_of(
    client: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any] = TRANSACTIONAL, limit: float = 10.0
) -> KafkaProducer:
    def new_client(kind: object, configuration: dict[str, Any], log: object) -> Any:
        client.on_delivery = configuration["on_delivery"]
        return client

    monkeypatch.setattr(module, "new_client", new_client)
    if isinstance(client, Queue):
        monkeypatch.setattr(module, "time", client)
    return KafkaProducer(settings, limit)


def output(value: bytes, topic: str = "x") -> Output:
    return (topic, value, None, -1, None, None, 0, None)


def outputs(first: int, last: int) -> list[Output]:
    return [output(b"%d" % number) for number in range(first, last)]


def failed(topic: str, value: bytes, *, timestamp: int | None = 5) -> Read:
    return Read(topic, -1, value, partition=3, key=b"k", headers=[("h", b"1")], timestamp=timestamp)


@pytest.mark.parametrize("settings", [TRANSACTIONAL, IDEMPOTENT])
def test_idempotent_producer_queues_outputs_at_once_and_removes_them_from_the_list(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(), outputs(0, 2_500)
    producer_of(client, monkeypatch, settings).write(written)
    assert (client.queue, client.batches, written) == (outputs(0, 2_500), [], [])


def test_producer_without_idempotence_has_one_batch_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second batch could overtake the first, if the first fails and is sent again."""
    client, written = Queue(), outputs(0, 2_500)
    producer = producer_of(client, monkeypatch, PLAIN)
    producer.write(written)
    assert (client.batches, client.queue, written) == ([CHUNK_RECORDS] * 2, outputs(2_000, 2_500), [])
    producer.write([output(b"next")])
    assert (client.batches, client.queue) == ([CHUNK_RECORDS] * 2 + [500], [output(b"next")])


def test_producer_without_idempotence_limits_the_bytes_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [output(bytes(CHUNK_BYTES // 2 - 100))] * 3 + [output(bytes(CHUNK_BYTES))] + [output(b"")] * 2
    client = Queue()
    producer = producer_of(client, monkeypatch, PLAIN)
    producer.write(large)
    producer.flush()
    assert client.batches == [2, 1, 1, 2]


@pytest.mark.parametrize("settings", [TRANSACTIONAL, PLAIN])
def test_output_refused_by_produce_is_removed_and_later_ones_stay_on_the_list(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(sends=0), outputs(0, 10)
    client.refuses = {b"4": CODES.MSG_SIZE_TOO_LARGE}
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch, settings).write(written)
    assert (caught.value.outputs, type(caught.value.mistake)) == (outputs(4, 5), RecordTooLarge)
    assert (client.queue, written) == (outputs(0, 4), outputs(5, 10))


def test_produce_with_a_state_error_raises_outcome_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    client.refuses = {b"0": CODES._STATE}
    with pytest.raises(OutcomeUnknown, match=r"^writing to topic 'x': Local: Erroneous state"):
        producer_of(client, monkeypatch).write(outputs(0, 1))


def test_produce_by_a_client_that_has_failed_for_good_raises_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    client.refuses = {b"0": CODES._FATAL}
    fatal = client_error(CODES.CLUSTER_AUTHORIZATION_FAILED)
    monkeypatch.setattr(client, "poll", lambda _: raise_error(fatal))
    with pytest.raises(NotAuthorized, match="IDEMPOTENT_WRITE on the cluster"):
        producer_of(client, monkeypatch).write(outputs(0, 1))


@pytest.mark.parametrize("code", [CODES.TOPIC_EXCEPTION, CODES._UNKNOWN_TOPIC], ids=["invalid", "unknown"])
def test_produce_to_a_topic_that_the_cluster_finds_invalid_raises_abortable(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(sends=0), outputs(0, 2)
    client.refuses, client.topics = {b"1": code}, {"x": CODES.TOPIC_EXCEPTION}
    with pytest.raises(Abortable) as caught:
        producer_of(client, monkeypatch, IDEMPOTENT).write(written)
    error = ck.KafkaError(code)
    assert str(caught.value) == f"writing to x: {error.str()} ({error.name()})"
    assert (client.queue, written) == (outputs(0, 1), outputs(1, 2))


def test_produce_error_after_a_failed_delivery_raises_the_error_of_the_delivery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queue()
    client.refuses, client.reports = {b"1": CODES._STATE}, [(CODES.INVALID_RECORD, failed("x", b"0"))]
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch).write(outputs(0, 2))
    assert caught.value.outputs == []


def test_write_waits_for_queue_space_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    client, written, queued = Queue(capacity=3, sends=1), outputs(0, 6), list[Output]()
    producer = producer_of(client, monkeypatch)
    produce = client.produce

    def keep(*each: Any) -> None:
        produce(*each)
        queued.append(each)

    monkeypatch.setattr(client, "produce", keep)
    producer.write(written)
    assert (queued, client.polled, written) == (outputs(0, 6), [0.02] * 3, [])


@pytest.mark.parametrize(("settings", "leaf"), [(TRANSACTIONAL, Abortable), (IDEMPOTENT, Retriable)])
def test_write_to_a_full_queue_fails_after_its_limit_and_keeps_the_rest_on_the_list(
    settings: dict[str, Any], leaf: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(capacity=3, sends=0), outputs(0, 6)
    producer = producer_of(client, monkeypatch, settings)
    with pytest.raises(leaf) as caught:
        producer.write(written)
    assert (type(caught.value), str(caught.value)) == (leaf, "the producer's queue stayed full for 10 s")
    assert (client.queue, written) == (outputs(0, 3), outputs(3, 6))
    assert client.now == pytest.approx(10.0, abs=0.1)
    client.sends = 3
    producer.write(written)
    assert (client.queue, written) == (outputs(3, 6), [])


def test_write_without_idempotence_fails_if_the_batch_before_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, written = Queue(sends=0), outputs(0, 1_500)
    producer = producer_of(client, monkeypatch, PLAIN)
    with pytest.raises(Retriable, match=r"^1000 records were not acknowledged within 10 s$"):
        producer.write(written)
    assert (client.queue, written) == (outputs(0, 1_000), outputs(1_000, 1_500))


# Acknowledgements and failed deliveries.


def test_flush_continues_while_the_broker_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(sends=1)
    client.seconds = 6.0  # of a limit of ten
    producer = producer_of(client, monkeypatch, IDEMPOTENT)
    producer.write(outputs(0, 20))
    producer.flush()
    assert (client.queue, client.now) == ([], 120.0)


def test_flush_without_progress_loses_nothing_and_can_be_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(sends=0)
    producer = producer_of(client, monkeypatch, IDEMPOTENT)
    producer.write(outputs(0, 2))
    with pytest.raises(Retriable, match=r"^2 records wait for their acknowledgement, and none arrived within 10 s$"):
        producer.flush()
    assert client.queue == outputs(0, 2)
    assert client.now == pytest.approx(10.0, abs=0.1)
    client.sends = 2
    producer.flush()
    assert client.queue == []


REFUSED_TOO_LARGE = (CODES.MSG_SIZE_TOO_LARGE, failed("x", b"large"))
REFUSED_RECORD = (CODES.INVALID_RECORD, failed("x", b"no key"))
BESIDE = (CODES._INVALID_DIFFERENT_RECORD, failed("x", b"beside"))
MISSING = (CODES.UNKNOWN_TOPIC_OR_PART, failed("missing", b"1"))
TIMED_OUT = (CODES._MSG_TIMED_OUT, failed("missing", b"2"))
FORBIDDEN = (CODES.TOPIC_AUTHORIZATION_FAILED, failed("y", b"3"))
TRANSIENT = (CODES.NOT_ENOUGH_REPLICAS, failed("z", b"4"))
OF_CLUSTER = (CODES.CLUSTER_AUTHORIZATION_FAILED, failed("y", b"5"))

IS_FORBIDDEN = (
    "writing to topic 'y': the broker refuses it (TOPIC_AUTHORIZATION_FAILED): grant this user "
    f"{RIGHTS[CODES.TOPIC_AUTHORIZATION_FAILED]} (kafka-acls --add; `kstreams acls` prints all of a graph)"
)
IS_MISSING = "topic 'missing' does not exist: run `kstreams topics create`"
IS_REFUSED = (
    "topic 'x' refuses a record (INVALID_RECORD: Broker: Broker failed to validate record): correct what the function "
    "returns, or the topic's settings"
)
IS_TRANSIENT = "writing to z: Broker: Not enough in-sync replicas (NOT_ENOUGH_REPLICAS)"


@pytest.mark.parametrize(
    ("reports", "exist", "leaf", "text", "later"),
    [
        ([TRANSIENT], False, Abortable, IS_TRANSIENT, None),
        ([TRANSIENT, REFUSED_RECORD, MISSING, FORBIDDEN], True, NotAuthorized, IS_FORBIDDEN, None),
        ([TRANSIENT, REFUSED_RECORD, MISSING], False, TopicError, IS_MISSING, None),
        ([REFUSED_RECORD, TIMED_OUT], False, TopicError, IS_MISSING, None),
        ([TRANSIENT, REFUSED_RECORD], False, Refused, IS_REFUSED, IS_TRANSIENT),
        ([MISSING, BESIDE, REFUSED_RECORD], True, Refused, IS_REFUSED, "writing to missing: "),
        ([MISSING], True, Abortable, "writing to missing: Broker: Unknown topic or partition", None),
    ],
    ids=["transient", "forbidden", "missing", "timed out", "refused", "beside", "not missing"],
)
def test_failed_deliveries_raise_the_error_that_no_repetition_mends(
    reports: list[tuple[int, Read]],
    exist: bool,
    leaf: type[KStreamsError],
    text: str,
    later: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queue()
    client.reports = reports
    client.topics = {} if exist else {"missing": CODES.UNKNOWN_TOPIC_OR_PART}
    producer = producer_of(client, monkeypatch, IDEMPOTENT)
    with pytest.raises(leaf) as caught:
        producer.flush()
    assert (type(caught.value), str(caught.value)[: len(text)]) == (leaf, text)
    if isinstance(caught.value, Refused):
        assert caught.value.outputs == []  # the caller of this producer repeats the work
    if later is None:
        producer.flush()
    else:
        with pytest.raises(Abortable, match=later.partition(" (")[0]):
            producer.flush()


class Asked(Queue):
    """A queue whose client notes which topics it is asked for; no broker answers about those of `silent`."""

    def __init__(self, *silent: str) -> None:
        super().__init__()
        self.silent = silent
        self.asked: list[str] = []

    def list_topics(self, topic: str, limit: float) -> Any:
        self.asked.append(topic)
        if topic in self.silent:
            raise client_error(CODES._TRANSPORT)
        return super().list_topics(topic, limit)


@pytest.mark.parametrize(
    ("silent", "asked", "unanswered"), [((), ["x", "y"], False), (("x", "y"), ["x"], True)], ids=["answered", "away"]
)
def test_topic_of_timed_out_records_is_asked_for_once_and_none_after_no_answer(
    silent: tuple[str, ...], asked: list[str], unanswered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Asked(*silent)
    client.reports = [(CODES._MSG_TIMED_OUT, failed(topic, b"%d" % number)) for topic in "xy" for number in range(50)]
    producer = producer_of(client, monkeypatch, TRANSACTIONAL)
    with pytest.raises(Abortable) as caught:
        producer.flush()
    assert (client.asked, caught.value.unanswered) == (asked, unanswered)


def test_error_without_an_answer_names_the_cluster_its_address_and_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, configured = "west:9092/1: Connect to west:9092 failed: Connection refused", dict[str, Any]()

    class Silent(Asked):
        def flush(self, seconds: float) -> int:
            left = super().flush(seconds)
            configured["error_cb"](ck.KafkaError(CODES._TRANSPORT, refused))
            configured["error_cb"](ck.KafkaError(CODES._ALL_BROKERS_DOWN, "1/1 brokers are down"))
            return left

    def new_client(kind: object, configuration: dict[str, Any], log: object) -> Any:
        configured.update(configuration)
        client.on_delivery = configuration["on_delivery"]
        return client

    monkeypatch.setattr(module, "new_client", new_client)
    client = Silent("x")
    monkeypatch.setattr(module, "time", client)
    producer = KafkaProducer(TRANSACTIONAL, 10.0, place="cluster 'west' at west:9092")
    client.reports = [(CODES._MSG_TIMED_OUT, failed("x", b"1"))]
    with pytest.raises(Abortable) as caught:
        producer.flush()
    timed_out = ck.KafkaError(CODES._MSG_TIMED_OUT).str()
    assert str(caught.value) == (
        f"writing to x: {timed_out} (_MSG_TIMED_OUT): no answer from cluster 'west' at west:9092 ({refused})"
    )
    client.sends = 0
    producer.write(outputs(0, 3))
    with pytest.raises(Retriable) as late:
        producer.flush()
    assert str(late.value) == (
        "3 records wait for their acknowledgement, and none arrived within 10 s: "
        f"no answer from cluster 'west' at west:9092 ({refused})"
    )


@pytest.mark.parametrize(
    ("reports", "mistake"),
    [
        ([REFUSED_TOO_LARGE, REFUSED_RECORD], RecordTooLarge),
        ([BESIDE], RecordRefused),
        ([BESIDE, REFUSED_TOO_LARGE], RecordTooLarge),
    ],
    ids=["first", "alone", "own"],
)
def test_refused_outputs_name_the_record_that_was_refused_itself(
    reports: list[tuple[int, Read]], mistake: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue()
    client.reports = reports
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch, IDEMPOTENT).flush()
    assert type(caught.value.mistake) is mistake


def test_refused_outputs_are_returned_as_written_if_the_producer_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery report has neither the headers nor the timestamp of its record."""
    client, producer = Queue(sends=0), None
    monkeypatch.setattr(module, "new_client", lambda *_: client)
    monkeypatch.setattr(module, "time", client)
    producer = KafkaProducer(IDEMPOTENT, 10.0, keeps_failed=True)
    written: list[Output] = [("x", b"%d" % i, b"k", -1, None, None, 7, [("h", b"1")]) for i in range(3)]
    producer.write(list(written))
    assert [queued[:4] + queued[6:] for queued in client.queue] == [output[:4] + output[6:] for output in written]
    for queued, code in zip(client.queue, (CODES.INVALID_RECORD, CODES._INVALID_DIFFERENT_RECORD, None), strict=True):
        report: Any = queued[4]
        report(None if code is None else ck.KafkaError(code), failed("x", b"?"))
    client.queue.clear()
    with pytest.raises(Refused) as caught:
        producer.flush()
    assert caught.value.outputs == written[:2]


def test_records_without_an_acknowledgement_count_as_lost_unless_they_are_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Purged(Queue):
        purge = staticmethod(lambda **_: None)

    client = Purged(sends=0)
    monkeypatch.setattr(module, "new_client", lambda *_: client)
    monkeypatch.setattr(module, "time", client)
    producer = KafkaProducer(IDEMPOTENT, 10.0, keeps_failed=True)
    codes = (None, CODES.INVALID_RECORD, CODES.NOT_ENOUGH_REPLICAS, CODES.REQUEST_TIMED_OUT, CODES.REQUEST_TIMED_OUT)
    producer.write([output(b"%d" % number, "y" if number == 4 else "x") for number in range(7)])
    callbacks: list[Any] = [queued[4] for queued in client.queue]
    for report, code in zip(callbacks[:5], codes, strict=True):
        report(None if code is None else ck.KafkaError(code), failed("x", b"?"))
    del client.queue[:5]
    returned = list[list[bytes]]()
    for _ in range(3):
        with pytest.raises((Refused, Abortable)) as caught:
            producer.flush()
        assert isinstance(caught.value, Refused | Abortable)
        returned.append([each[1] for each in caught.value.outputs])
    assert (returned, +producer.lost) == ([[b"1"], [b"2"], []], {"x": 1, "y": 1})
    before = client.now
    producer.drop()
    assert producer.lost == {"x": 1, "y": 1, "": 2}, "the client has not reported them in time"
    assert client.now - before == pytest.approx(module.PURGED_SECONDS, abs=0.011)


def test_failed_delivery_of_an_output_with_its_own_callback_fails_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queue(sends=0)
    monkeypatch.setattr(module, "new_client", lambda *_: client)
    monkeypatch.setattr(module, "time", client)
    producer = KafkaProducer(TRANSACTIONAL, 10.0, reports=True)
    told: list[tuple[int | None, Any]] = []

    def report(error: Any, message: Any) -> None:
        told.append((error and error.code(), message))

    located: Output = ("x", b"0", b"k", 2, report, None, 7, [("h", b"1")])
    producer.begin_transaction()
    producer.write([located, output(b"1"), located])
    assert [(*queued[:4], *queued[6:]) for queued in client.queue] == [
        ("x", b"0", b"k", 2, 7, [("h", b"1")]), ("x", b"1", None, -1, 0, None), ("x", b"0", b"k", 2, 7, [("h", b"1")]),
    ]  # fmt: skip
    callbacks: list[Any] = [queued[4] for queued in client.queue]
    own, none, other = callbacks
    assert none is None, "the client's own callback is called"
    written, lost = failed("x", b"0"), failed("x", b"0")
    own(None, written)
    other(ck.KafkaError(CODES.NOT_ENOUGH_REPLICAS), lost)
    assert told == [(None, written), (CODES.NOT_ENOUGH_REPLICAS, lost)]
    client.queue.clear()
    with pytest.raises(Abortable, match=r"^writing to x: "):
        producer.flush()


@pytest.mark.parametrize(("settings", "kept"), [(TRANSACTIONAL, FAILURES_KEPT), (IDEMPOTENT, 150)])
def test_failed_deliveries_are_kept_up_to_a_limit_in_a_transaction(
    settings: dict[str, Any], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue()
    client.reports = [(CODES.INVALID_RECORD, failed("x", b"%d" % number)) for number in range(150)]
    producer = producer_of(client, monkeypatch, settings)
    producer._poll(0)
    assert len(producer._failed) == kept


def test_acknowledged_deliveries_do_not_fail_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    client.on_delivery(None, failed("x", b"1"))
    producer.flush()
    assert producer._failed == []


def test_begin_transaction_clears_failed_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    client.on_delivery(ck.KafkaError(CODES.INVALID_RECORD), failed("x", b"1"))
    producer.begin_transaction()
    producer.flush()
    assert producer._failed == []


def test_fatal_client_error_is_raised_by_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    error = client_error(CODES._FATAL, fatal=True)
    broken = SimpleNamespace(poll=lambda _: raise_error(error), flush=lambda _: raise_error(error), __len__=lambda: 1)
    producer = producer_of(broken, monkeypatch)
    with pytest.raises(Fatal, match=r"^serving the producer: "):
        producer._poll(0)
    with pytest.raises(Fatal, match=r"^sending queued records: "):
        producer.flush()
    with pytest.raises(Fatal, match=r"^sending queued records: "):
        producer._drain(0.0)
    assert producer.tainted


def test_producer_is_tainted_by_the_log_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    assert (producer.tainted, client.polled) == (False, [0])
    producer._log.tainted = True
    assert producer.tainted


# Transactional calls.


class Transactions(Queue):
    """A producer's client whose transactional calls wait until all records are sent, and then raise `raises`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = 0.0
        self.did: list[str] = []
        self.raises: ck.KafkaException | None = None
        self._sent = threading.Event()

    def flush(self, seconds: float) -> int:
        left = super().flush(seconds)
        if not left:
            self._sent.set()
        return left

    def _call(self, name: str) -> None:
        assert self._sent.wait(10)
        self.did.append(name)
        if self.raises is not None:
            raise self.raises

    def send_offsets_to_transaction(self, *_: object) -> None:
        self._call("offsets")

    def commit_transaction(self, _: float) -> None:
        self._call("commit")

    def abort_transaction(self, _: float) -> None:
        self._call("abort")


class Starting(Queue):
    """Clients of producers, one after another; each start raises the next of `codes`, if there is one."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes = list(codes)
        self.did: list[str] = []

    def new_client(self, *_: object) -> Starting:
        self.did.append("new client")
        return self

    def list_topics(self, topic: str, limit: float) -> Any:
        self.did.append("connected")

    def init_transactions(self, seconds: float) -> None:
        self.did.append(f"started, within {seconds:g} s")
        if self.codes:
            raise client_error(self.codes.pop(0))


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], ["new client", "connected", "started, within 0.05 s"]),
        (
            [ck.KafkaError.CONCURRENT_TRANSACTIONS],
            ["new client", "connected", "started, within 0.05 s", "new client", "connected", "started, within 0.1 s"],
        ),
        ([ck.KafkaError._TIMED_OUT], ["new client", "connected", "started, within 0.05 s", "started, within 0.1 s"]),
        (
            [ck.KafkaError._TIMED_OUT, ck.KafkaError.CONCURRENT_TRANSACTIONS, ck.KafkaError.CONCURRENT_TRANSACTIONS],
            [
                "new client",
                "connected",
                "started, within 0.05 s",
                "started, within 0.1 s",
                "new client",
                "connected",
                "started, within 0.2 s",
                "new client",
                "connected",
                "started, within 10 s",
            ],
        ),
    ],
)
def test_init_transactions_during_concurrent_transactions_retries_with_a_new_client(
    codes: list[int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka itself repeats the request only after 500 ms."""
    client = Starting(*codes)
    monkeypatch.setattr(module, "new_client", client.new_client)
    KafkaProducer(TRANSACTIONAL, 10.0).init_transactions()
    assert client.did == expected


def add_offsets(producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch, member: KafkaConsumer | None = None) -> None:
    producer.send_offsets({A0: 1}, member or new_member(monkeypatch))


def new_member(monkeypatch: pytest.MonkeyPatch) -> KafkaConsumer:
    """A consumer without a client."""
    member = KafkaConsumer.__new__(KafkaConsumer)
    member.group = "g"
    member.patience = PATIENCE_SECONDS
    monkeypatch.setattr(member, "group_metadata", lambda: None)
    return member


def test_send_offsets_limit_doubles_after_a_timeout_and_shrinks_with_fast_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []
    member = new_member(monkeypatch)
    takes = iter([2.0, 4.0, 8.0, 3.0, 0.0, 3.0, *[0.0] * 20])

    class Coordinator(Queue):
        """A coordinator that answers after the next of `takes` seconds, unless the limit is shorter."""

        def send_offsets_to_transaction(self, *given: Any) -> None:
            limits.append(round(given[-1], 2))
            taken = next(takes)
            self.now += min(taken, given[-1])
            if taken >= given[-1]:
                raise client_error(CODES._TIMED_OUT, retriable=True)

    client = Coordinator()
    client.seconds = 0.0
    producer = producer_of(client, monkeypatch, limit=15.0)
    for fails in [True, True, True, *[False] * 23]:
        with pytest.raises(Retriable) if fails else nullcontext():
            add_offsets(producer, monkeypatch, member)
    assert limits[:7] == [2.0, 4.0, 8.0, 15.0, 13.5, 12.15, 10.94]
    assert limits[-1] == 2.0


def test_send_offsets_refused_at_once_keeps_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Queue):
        def send_offsets_to_transaction(self, *_: object) -> None:
            raise client_error(CODES.ILLEGAL_GENERATION)

    member = new_member(monkeypatch)
    client = Refusing()
    client.seconds = 0.0
    producer = producer_of(client, monkeypatch, limit=15.0)
    for _ in range(3):
        with pytest.raises(Abortable):
            add_offsets(producer, monkeypatch, member)
    assert member.patience == PATIENCE_SECONDS


@pytest.mark.parametrize(("refused", "named"), [("x", "topic 'x'"), (None, "topic 'a'")], ids=["output", "input"])
def test_topic_that_lacks_a_right_is_named_while_offsets_are_added(
    monkeypatch: pytest.MonkeyPatch, refused: str | None, named: str
) -> None:
    """The right to write to an output may be missed in any call: by the client's log, which a poll serves."""

    class Refusing(Queue):
        def send_offsets_to_transaction(self, *_: object) -> None:
            raise client_error(CODES.TOPIC_AUTHORIZATION_FAILED)

        def poll(self, seconds: float) -> None:
            if refused is not None:
                producer._log.emit(logging.makeLogRecord({"msg": NOT_ADDED.format(refused)}))

    producer = producer_of(Refusing(), monkeypatch)
    producer.begin_transaction()
    producer.write([output(b"0", "x"), output(b"1", "y")])
    with pytest.raises(NotAuthorized) as raised:
        add_offsets(producer, monkeypatch)
    assert str(raised.value).startswith(f"adding offsets to the transaction ({named}): "), raised.value
    refused = None
    producer.begin_transaction()
    assert producer._log.refused == set()


def test_topic_that_lacks_a_right_is_named_where_its_records_are_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that is told where records are written waits for them first, and no call reports the right."""
    client = Queue()
    producer = producer_of(client, monkeypatch)
    producer.begin_transaction()
    producer.write([output(b"0", "x"), output(b"1", "y")])
    producer._log.emit(logging.makeLogRecord({"msg": NOT_ADDED.format("y")}))
    client.reports = [(CODES._PURGE_QUEUE, failed("x", b"0")), (CODES._PURGE_QUEUE, failed("y", b"1"))]
    with pytest.raises(NotAuthorized, match=r"^writing \(topic 'y'\): the broker refuses it"):
        producer.flush()


@pytest.mark.parametrize("call", ["flush", "commit_transaction", "write"])
def test_records_purged_for_a_refused_one_are_not_its_cause(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The client reports them first: one of its threads purges them, another reports the batch that failed."""
    client = Queue()
    producer = producer_of(client, monkeypatch)
    producer.begin_transaction()
    producer.write([output(b"large", "y"), *outputs(0, FAILURES_KEPT)])
    client.refuses = {b"last": CODES._STATE}

    def serve(seconds: float) -> int:
        code = CODES._PURGE_QUEUE if len(client.queue) > 1 else CODES.MSG_SIZE_TOO_LARGE
        while len(client.queue) > (code == CODES._PURGE_QUEUE):
            topic, value, *_ = client.queue.pop()
            client.on_delivery(ck.KafkaError(code), failed(topic, value or b""))
        return len(client.queue)

    monkeypatch.setattr(client, "flush", serve)
    monkeypatch.setattr(client, "poll", serve)
    monkeypatch.setattr(client, "commit_transaction", lambda _: raise_error(client_error(CODES._STATE)), raising=False)
    with pytest.raises(Refused, match=r"^a record is larger than topic 'y' takes"):
        producer.write([output(b"last")]) if call == "write" else getattr(producer, call)()


def test_call_that_exceeds_its_own_limit_raises_outcome_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's send_offsets_to_transaction may wait for a coordinator without limit."""
    released = threading.Event()

    class Stuck(Queue):
        send_offsets_to_transaction = staticmethod(lambda *_: released.wait())
        purge = staticmethod(lambda **_: None)

    stuck = Stuck()
    monkeypatch.setattr(module, "CALL_GRACE_SECONDS", 0.05)
    producer = producer_of(stuck, monkeypatch, limit=0.05)
    with pytest.raises(OutcomeUnknown, match=r"adding offsets .*: the client did not return within its own limit of"):
        add_offsets(producer, monkeypatch)
    producer.drop()
    released.set()


def test_records_are_sent_while_offsets_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    add_offsets(producer, monkeypatch)
    assert (client.batches, client.did) == ([1, 1, 1], ["offsets"])


def test_commit_waits_until_every_record_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    producer.commit_transaction()
    assert (client.batches, client.did) == ([1, 1, 1], ["commit"])


@pytest.mark.parametrize("reports", [[], [REFUSED_RECORD]], ids=["none failed", "one failed"])
def test_commit_with_unacknowledged_records_requires_an_abort(
    reports: list[tuple[int, Read]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue(sends=0)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 2))
    client.reports = reports
    leaf, text = (Refused, IS_REFUSED) if reports else (Abortable, "2 records were not acknowledged within 10 s")
    with pytest.raises(leaf) as caught:
        producer.commit_transaction()
    assert str(caught.value) == text


CALLS: Sequence[Any] = [
    pytest.param(add_offsets, id="offsets"),
    pytest.param(lambda producer, patch: producer.commit_transaction(), id="commit"),
    pytest.param(lambda producer, patch: producer.abort_transaction(), id="abort"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("code", "flags", "leaf"),
    [
        (CODES._TIMED_OUT, {"retriable": True}, Retriable),
        (CODES.CONCURRENT_TRANSACTIONS, {"txn_requires_abort": True}, Abortable),
        (CODES.PRODUCER_FENCED, {"fatal": True}, Fenced),
        (CODES._STATE, {}, OutcomeUnknown),
    ],
)
def test_call_that_ends_the_transaction_without_an_answer_raises_outcome_unknown(
    call: Callable[[KafkaProducer, pytest.MonkeyPatch], None],
    code: int,
    flags: dict[str, bool],
    leaf: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    client = Transactions()
    client.raises = client_error(code, **flags)
    ending = {"commit": (Retriable,), "abort": (Retriable, Abortable)}
    expected = OutcomeUnknown if leaf in ending.get(request.node.callspec.id.split("-")[-1], ()) else leaf
    with pytest.raises(expected) as caught:
        call(producer_of(client, monkeypatch), monkeypatch)
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("code", "reports", "leaf"),
    [
        (CODES._STATE, [REFUSED_RECORD], Refused),
        (CODES._STATE, [FORBIDDEN], NotAuthorized),
        (CODES._STATE, [TRANSIENT], OutcomeUnknown),
        (CODES._STATE, [], OutcomeUnknown),
        (CODES.PRODUCER_FENCED, [REFUSED_RECORD], Fenced),
    ],
    ids=["refused", "forbidden", "transient", "none", "fenced"],
)
def test_commit_that_fails_after_a_failed_delivery_raises_the_error_of_the_delivery(
    code: int, reports: list[tuple[int, Read]], leaf: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Transactions()
    client.raises, client.reports = client_error(code), reports
    with pytest.raises(leaf) as caught:
        producer_of(client, monkeypatch).commit_transaction()
    assert type(caught.value) is leaf


def test_abort_flushes_the_queue_and_clears_failed_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    client.reports = [REFUSED_RECORD]
    producer.abort_transaction()
    assert (client.batches, client.did, producer._failed) == ([1, 1, 1], ["abort"], [])


def test_abort_that_cannot_flush_the_queue_raises_outcome_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(sends=0)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 2))
    with pytest.raises(OutcomeUnknown, match=r"^2 records were neither sent nor refused before the abort$"):
        producer.abort_transaction()
    assert client.now == pytest.approx(ABORT_FLUSH_SECONDS, abs=0.1)
