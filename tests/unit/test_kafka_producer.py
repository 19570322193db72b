"""ports/kafka/producer.py: what no broker does on request; the rest is in tests/contract/."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.delivery import Output
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
from kstreams_py.ports.kafka import producer as module
from kstreams_py.ports.kafka.consumer import PATIENCE_SECONDS, KafkaConsumer
from kstreams_py.ports.kafka.errors import RIGHTS
from kstreams_py.ports.kafka.producer import (
    ABORT_FLUSH_SECONDS,
    CHUNK_BYTES,
    CHUNK_RECORDS,
    FAILURES_KEPT,
    KafkaProducer,
)
from kstreams_py.record import TopicPartition
from tests.unit.fakes import Read, failing, metadata, raising

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
CODES = ck.KafkaError
ELSEWHERE = ("g.0@host-7-42", "10.0.0.7")
IS_ELSEWHERE = "g.0@host-7-42 on 10.0.0.7"
SETTINGS = {"group.id": "g", "group.instance.id": "g.0", "client.id": "g.0@here-1"}


# The producer.


class Queue:
    """A producer's client on a clock of its own: a queue, of which each flush sends what `sends` says."""

    def __init__(self, *, room: int = 1_000_000, sends: int = 1_000_000) -> None:
        self.now = 0.0
        self.room = room
        self.sends = sends
        self.seconds: float | None = None
        """How long a flush takes; None: as long as it was given."""
        self.queue: list[Output] = []
        self.batches: list[int] = []
        """How many records each flush sent."""
        self.refuses: dict[bytes, int] = {}
        """Codes for which `produce` refuses values."""
        self.polled: list[float] = []
        self.reports: list[tuple[int, Any]] = []
        """Deliveries that have failed, to be reported by the next poll or flush."""
        self.topics: dict[str, int | None] = {}

    def monotonic(self) -> float:
        return self.now

    def __len__(self) -> int:
        return len(self.queue)

    def produce(self, *output: Any) -> None:
        if len(self.queue) >= self.room:
            raise BufferError
        if (code := self.refuses.get(output[1])) is not None:
            raise failing(code)
        self.queue.append(output)  # type: ignore[arg-type]

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


TRANSACTIONAL = {"enable.idempotence": True, "transactional.id": "g.p.0"}
IDEMPOTENT = {"enable.idempotence": True}
PLAIN = {"enable.idempotence": False}


def producer_of(
    client: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any] = TRANSACTIONAL, limit: float = 10.0
) -> KafkaProducer:
    def made(kind: object, configuration: dict[str, Any], log: object) -> Any:
        client.on_delivery = configuration["on_delivery"]
        return client

    monkeypatch.setattr(module, "made", made)
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
def test_producer_with_sequence_numbers_queues_outputs_at_once_and_takes_them_off_the_list(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(), outputs(0, 2_500)
    producer_of(client, monkeypatch, settings).write(written)
    assert (client.queue, client.batches, written) == (outputs(0, 2_500), [], [])


def test_producer_without_sequence_numbers_has_one_batch_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one could overtake the first, if the first fails and is sent again."""
    client, written = Queue(), outputs(0, 2_500)
    producer = producer_of(client, monkeypatch, PLAIN)
    producer.write(written)
    assert (client.batches, client.queue, written) == ([CHUNK_RECORDS] * 2, outputs(2_000, 2_500), [])
    producer.write([output(b"next")])
    assert (client.batches, client.queue) == ([CHUNK_RECORDS] * 2 + [500], [output(b"next")])


def test_producer_without_sequence_numbers_has_few_bytes_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [output(bytes(CHUNK_BYTES // 2 - 100))] * 3 + [output(bytes(CHUNK_BYTES))] + [output(b"")] * 2
    client = Queue()
    producer = producer_of(client, monkeypatch, PLAIN)
    producer.write(large)
    producer.flush()
    assert client.batches == [2, 1, 1, 2]


@pytest.mark.parametrize("settings", [TRANSACTIONAL, PLAIN])
def test_output_that_is_refused_at_once_is_off_the_list_and_those_behind_it_are_not(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(sends=0), outputs(0, 10)
    client.refuses = {b"4": CODES.MSG_SIZE_TOO_LARGE}
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch, settings).write(written)
    assert (caught.value.outputs, type(caught.value.mistake)) == (outputs(4, 5), RecordTooLarge)
    assert (client.queue, written) == (outputs(0, 4), outputs(5, 10))


def test_output_that_the_client_does_not_take_for_another_reason_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queue()
    client.refuses = {b"0": CODES._STATE}
    with pytest.raises(OutcomeUnknown, match=r"^writing to topic 'x': Local: Erroneous state"):
        producer_of(client, monkeypatch).write(outputs(0, 1))


def test_topic_whose_name_the_broker_does_not_take_fails_as_its_deliveries_do(monkeypatch: pytest.MonkeyPatch) -> None:
    client, written = Queue(sends=0), outputs(0, 2)
    client.refuses = {b"1": CODES.TOPIC_EXCEPTION}
    with pytest.raises(Abortable, match=r"^writing to x: Broker: Invalid topic \(TOPIC_EXCEPTION\)$"):
        producer_of(client, monkeypatch, IDEMPOTENT).write(written)
    assert (client.queue, written) == (outputs(0, 1), outputs(1, 2))


def test_delivery_that_failed_before_is_why_the_client_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    client.refuses, client.reports = {b"1": CODES._STATE}, [(CODES.INVALID_RECORD, failed("x", b"0"))]
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch).write(outputs(0, 2))
    assert caught.value.outputs == []


def test_write_waits_for_room_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    client, written, queued = Queue(room=3, sends=1), outputs(0, 6), list[Output]()
    producer = producer_of(client, monkeypatch)
    produce = client.produce
    monkeypatch.setattr(client, "produce", lambda *each: produce(*each) or queued.append(each))  # type: ignore[func-returns-value,arg-type]
    producer.write(written)
    assert (queued, client.polled, written) == (outputs(0, 6), [0.02] * 3, [])


@pytest.mark.parametrize(("settings", "leaf"), [(TRANSACTIONAL, Abortable), (IDEMPOTENT, Retriable)])
def test_queue_that_stays_full_ends_the_write_and_what_is_not_queued_stays_on_the_list(
    settings: dict[str, Any], leaf: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(room=3, sends=0), outputs(0, 6)
    producer = producer_of(client, monkeypatch, settings)
    with pytest.raises(leaf) as caught:
        producer.write(written)
    assert (type(caught.value), str(caught.value)) == (leaf, "the producer's queue stayed full for 10 s")
    assert (client.queue, written) == (outputs(0, 3), outputs(3, 6))
    assert client.now == pytest.approx(10.0, abs=0.1)
    client.sends = 3
    producer.write(written)
    assert (client.queue, written) == (outputs(3, 6), [])


def test_write_without_sequence_numbers_waits_in_vain_and_queues_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client, written = Queue(sends=0), outputs(0, 1_500)
    producer = producer_of(client, monkeypatch, PLAIN)
    with pytest.raises(Retriable, match=r"^1000 records were not acknowledged within 10 s$"):
        producer.write(written)
    assert (client.queue, written) == (outputs(0, 1_000), outputs(1_000, 1_500))


# The producer: acknowledgements, and deliveries that failed.


def test_flush_goes_on_while_the_broker_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(Retriable, match=r"^2 records wait for their acknowledgement, and none came within 10 s$"):
        producer.flush()
    assert (client.queue, client.now) == (outputs(0, 2), pytest.approx(10.0, abs=0.1))
    client.sends = 2
    producer.flush()
    assert client.queue == []


REFUSED_TOO_LARGE = (CODES.MSG_SIZE_TOO_LARGE, failed("x", b"large"))
REFUSED_RECORD = (CODES.INVALID_RECORD, failed("x", b"no key"))
BESIDE = (CODES._INVALID_DIFFERENT_RECORD, failed("x", b"beside"))
MISSING = (CODES.UNKNOWN_TOPIC_OR_PART, failed("gone", b"1"))
TIMED_OUT = (CODES._MSG_TIMED_OUT, failed("gone", b"2"))
FORBIDDEN = (CODES.TOPIC_AUTHORIZATION_FAILED, failed("y", b"3"))
PASSING = (CODES.NOT_ENOUGH_REPLICAS, failed("z", b"4"))
OF_CLUSTER = (CODES.CLUSTER_AUTHORIZATION_FAILED, failed("y", b"5"))

IS_FORBIDDEN = (
    "writing to topic 'y': the broker refuses it (TOPIC_AUTHORIZATION_FAILED): grant this user "
    f"{RIGHTS[CODES.TOPIC_AUTHORIZATION_FAILED]} (kafka-acls --add)"
)
IS_MISSING = "topic 'gone' does not exist: run `kstreams topics create`"
IS_REFUSED = (
    "topic 'x' refuses a record (INVALID_RECORD: Broker: Broker failed to validate record): correct what the function "
    "returns, or the topic's settings"
)
IS_PASSING = "writing to z: Broker: Not enough in-sync replicas (NOT_ENOUGH_REPLICAS)"


@pytest.mark.parametrize(
    ("reports", "exist", "leaf", "text", "given", "later"),
    [
        ([PASSING], False, Abortable, IS_PASSING, [], None),
        ([PASSING, REFUSED_RECORD, MISSING, FORBIDDEN], True, NotAuthorized, IS_FORBIDDEN, [], None),
        ([PASSING, REFUSED_RECORD, MISSING], False, TopicError, IS_MISSING, [], None),
        ([REFUSED_RECORD, TIMED_OUT], False, TopicError, IS_MISSING, [], None),
        ([PASSING, REFUSED_RECORD], False, Refused, IS_REFUSED, [b"no key"], IS_PASSING),
        ([MISSING, BESIDE, REFUSED_RECORD], True, Refused, IS_REFUSED, [b"beside", b"no key"], "writing to gone: "),
        ([MISSING], True, Abortable, "writing to gone: Broker: Unknown topic or partition", [], None),
    ],
    ids=["passing", "forbidden", "missing", "timed out", "refused", "beside", "not missing"],
)
def test_deliveries_that_failed_are_told_by_what_no_attempt_mends(
    reports: list[tuple[int, Read]],
    exist: bool,
    leaf: type[KStreamsError],
    text: str,
    given: list[bytes],
    later: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queue()
    client.reports = reports
    client.topics = {} if exist else {"gone": CODES.UNKNOWN_TOPIC_OR_PART}
    producer = producer_of(client, monkeypatch, IDEMPOTENT)
    with pytest.raises(leaf) as caught:
        producer.flush()
    assert (type(caught.value), str(caught.value)[: len(text)]) == (leaf, text)
    if isinstance(caught.value, Refused):
        assert caught.value.outputs == []  # of a producer whose caller does the work again
    if later is None:
        producer.flush()
    else:
        with pytest.raises(Abortable, match=later.partition(" (")[0]):
            producer.flush()


@pytest.mark.parametrize(
    ("reports", "mistake"),
    [
        ([REFUSED_TOO_LARGE, REFUSED_RECORD], RecordTooLarge),
        ([BESIDE], RecordRefused),
        ([BESIDE, REFUSED_TOO_LARGE], RecordTooLarge),
    ],
    ids=["first", "alone", "own"],
)
def test_refused_outputs_are_told_by_a_record_that_was_refused_itself(
    reports: list[tuple[int, Read]], mistake: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue()
    client.reports = reports
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch, IDEMPOTENT).flush()
    assert type(caught.value.mistake) is mistake


def test_outputs_that_were_refused_are_given_back_as_they_were_written_where_they_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report has neither the headers nor the time of its record."""
    client, producer = Queue(sends=0), None
    monkeypatch.setattr(module, "made", lambda *_: client)
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


@pytest.mark.parametrize(("settings", "kept"), [(TRANSACTIONAL, FAILURES_KEPT), (IDEMPOTENT, 150)])
def test_failed_deliveries_are_all_kept_but_in_a_transaction(
    settings: dict[str, Any], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue()
    client.reports = [(CODES.INVALID_RECORD, failed("x", b"%d" % number)) for number in range(150)]
    producer = producer_of(client, monkeypatch, settings)
    producer._poll(0)
    assert len(producer._failed) == kept


def test_deliveries_that_were_acknowledged_are_no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    client.on_delivery(None, failed("x", b"1"))
    producer.flush()


def test_failures_of_one_transaction_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    client.on_delivery(ck.KafkaError(CODES.INVALID_RECORD), failed("x", b"1"))
    producer.begin_transaction()
    producer.flush()


def test_client_that_has_failed_for_good_says_so_whatever_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = failing(CODES._FATAL, fatal=True)
    broken = SimpleNamespace(poll=lambda _: raising(error), flush=lambda _: raising(error), __len__=lambda: 1)
    producer = producer_of(broken, monkeypatch)
    with pytest.raises(Fatal, match=r"^serving the producer: "):
        producer._poll(0)
    with pytest.raises(Fatal, match=r"^sending what is queued: "):
        producer.flush()
    with pytest.raises(Fatal, match=r"^sending what is queued: "):
        producer._drain(0.0)
    assert producer.tainted


def test_producer_is_tainted_by_what_its_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    assert (producer.tainted, client.polled) == (False, [0])
    producer._log.tainted = True
    assert producer.tainted


# The producer: transactional calls.


class Transactions(Queue):
    """A producer's client whose transactional calls wait until all records are sent, and raise what they were given."""

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
        self._call("positions")

    def commit_transaction(self, _: float) -> None:
        self._call("commit")

    def abort_transaction(self, _: float) -> None:
        self._call("abort")


class Starting(Queue):
    """Producers' clients, one after the other; the first attempts to start one raise what they were given."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes = list(codes)
        self.did: list[str] = []

    def made(self, *_: object) -> Starting:
        self.did.append("made")
        return self

    def list_topics(self, topic: str, limit: float) -> Any:
        self.did.append("connected")

    def init_transactions(self, seconds: float) -> None:
        self.did.append(f"started, within {seconds:g} s")
        if self.codes:
            raise failing(self.codes.pop(0))


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], ["made", "connected", "started, within 0.05 s"]),
        (
            [ck.KafkaError.CONCURRENT_TRANSACTIONS],
            ["made", "connected", "started, within 0.05 s", "made", "connected", "started, within 0.1 s"],
        ),
        ([ck.KafkaError._TIMED_OUT], ["made", "connected", "started, within 0.05 s", "started, within 0.1 s"]),
        (
            [ck.KafkaError._TIMED_OUT, ck.KafkaError.CONCURRENT_TRANSACTIONS, ck.KafkaError.CONCURRENT_TRANSACTIONS],
            [
                "made",
                "connected",
                "started, within 0.05 s",
                "started, within 0.1 s",
                "made",
                "connected",
                "started, within 0.2 s",
                "made",
                "connected",
                "started, within 10 s",
            ],
        ),
    ],
)
def test_producer_that_is_started_while_its_old_transaction_is_settled_asks_with_a_new_client(
    codes: list[int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka itself asks again after 500 ms."""
    client = Starting(*codes)
    monkeypatch.setattr(module, "made", client.made)
    KafkaProducer(TRANSACTIONAL, 10.0).init_transactions()
    assert client.did == expected


def add_positions(
    producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch, member: KafkaConsumer | None = None
) -> None:
    producer.send_offsets({A0: 1}, member or a_member(monkeypatch))


def a_member(monkeypatch: pytest.MonkeyPatch) -> KafkaConsumer:
    """A consumer without a client."""
    member = KafkaConsumer.__new__(KafkaConsumer)
    member.group = "g"
    member.patience = PATIENCE_SECONDS
    monkeypatch.setattr(member, "group_metadata", lambda: None)
    return member


def test_coordinator_is_waited_for_twice_as_long_as_it_took_and_no_longer_after_many_answers_that_came_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []
    member = a_member(monkeypatch)
    takes = iter([2.0, 4.0, 8.0, 3.0, 0.0, 3.0, *[0.0] * 20])

    class Coordinator(Queue):
        """Answers after so many seconds, if it is waited for so long."""

        def send_offsets_to_transaction(self, *given: Any) -> None:
            limits.append(round(given[-1], 2))
            taken = next(takes)
            self.now += min(taken, given[-1])
            if taken >= given[-1]:
                raise failing(CODES._TIMED_OUT, retriable=True)

    client = Coordinator()
    client.seconds = 0.0
    producer = producer_of(client, monkeypatch, limit=15.0)
    for fails in [True, True, True, *[False] * 23]:
        with pytest.raises(Retriable) if fails else nullcontext():
            add_positions(producer, monkeypatch, member)
    assert limits[:7] == [2.0, 4.0, 8.0, 15.0, 13.5, 12.15, 10.94]
    assert limits[-1] == 2.0


def test_refusals_that_come_at_once_do_not_make_it_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Queue):
        def send_offsets_to_transaction(self, *_: object) -> None:
            raise failing(CODES.ILLEGAL_GENERATION)

    member = a_member(monkeypatch)
    client = Refusing()
    client.seconds = 0.0
    producer = producer_of(client, monkeypatch, limit=15.0)
    for _ in range(3):
        with pytest.raises(Abortable):
            add_positions(producer, monkeypatch, member)
    assert member.patience == PATIENCE_SECONDS


def test_call_that_outlasts_its_own_limit_is_given_up_with_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's send_offsets_to_transaction may wait for a coordinator without end."""
    released = threading.Event()
    stuck = SimpleNamespace(
        send_offsets_to_transaction=lambda *_: released.wait(),
        flush=lambda _: 1,
        purge=lambda **_: None,
    )
    monkeypatch.setattr(module, "CALL_GRACE_SECONDS", 0.05)
    producer = producer_of(stuck, monkeypatch, limit=0.05)
    with pytest.raises(OutcomeUnknown, match=r"adding positions .*: the client did not return within its own limit of"):
        add_positions(producer, monkeypatch)
    producer.drop()
    released.set()


def test_records_are_sent_while_positions_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    add_positions(producer, monkeypatch)
    assert (client.batches, client.did) == ([1, 1, 1], ["positions"])


def test_commit_waits_until_every_record_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    producer.commit_transaction()
    assert (client.batches, client.did) == ([1, 1, 1], ["commit"])


@pytest.mark.parametrize("reports", [[], [REFUSED_RECORD]], ids=["none failed", "one failed"])
def test_records_that_are_not_acknowledged_in_time_are_an_abort(
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
    pytest.param(add_positions, id="positions"),
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
def test_call_without_an_answer_ends_in_an_unknown_outcome_where_it_ends_the_transaction(
    call: Callable[[KafkaProducer, pytest.MonkeyPatch], None],
    code: int,
    flags: dict[str, bool],
    leaf: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    client = Transactions()
    client.raises = failing(code, **flags)
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
        (CODES._STATE, [PASSING], OutcomeUnknown),
        (CODES._STATE, [], OutcomeUnknown),
        (CODES.PRODUCER_FENCED, [REFUSED_RECORD], Fenced),
    ],
    ids=["refused", "forbidden", "passing", "none", "fenced"],
)
def test_call_that_fails_for_a_delivery_that_failed_says_which(
    code: int, reports: list[tuple[int, Read]], leaf: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Transactions()
    client.raises, client.reports = failing(code), reports
    with pytest.raises(leaf) as caught:
        producer_of(client, monkeypatch).commit_transaction()
    assert type(caught.value) is leaf


def test_abort_waits_for_what_is_on_its_way_and_forgets_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    client.reports = [REFUSED_RECORD]
    producer.abort_transaction()
    assert (client.batches, client.did, producer._failed) == ([1, 1, 1], ["abort"], [])


def test_abort_that_cannot_send_what_is_queued_needs_another_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(sends=0)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 2))
    with pytest.raises(OutcomeUnknown, match=r"^2 records were neither sent nor refused before the abort$"):
        producer.abort_transaction()
    assert client.now == pytest.approx(ABORT_FLUSH_SECONDS, abs=0.1)
