"""Workers of event ordering without a broker: what is sent again, and what is given back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    ClientError,
    DecodeError,
    RecordRefused,
    RecordTooLarge,
    Refused,
    Retriable,
    SettingsError,
    StoreUnavailable,
    TopicError,
)
from kstreams_py.formats.serdes import Bytes, String
from kstreams_py.kafka.contracts import Cluster, Output, ProducerMode, TopicInfo
from kstreams_py.kafka.partitioner import partition_of
from kstreams_py.ordering import Ordering
from kstreams_py.ordering.events import Event, OrderedEvent, headers_of
from kstreams_py.ordering.front_end import open_storage
from kstreams_py.ordering.sending import ATTEMPTS_MAX, KafkaSender, check_topic
from kstreams_py.ordering.sqlite import SQLiteStorage
from kstreams_py.ordering.steps import Answer, Step
from kstreams_py.ordering.storage import Incarnation, ObjectStatus, Storage
from kstreams_py.ordering.worker import STOP_ATTEMPTS, OrderingWorker

TOPIC = "events"
UUID = bytes(range(16))


def ordered(*values: bytes) -> list[tuple[str, OrderedEvent]]:
    return [("a", OrderedEvent(Event(UUID, each), at + 1, at or None)) for at, each in enumerate(values)]


class Producers:
    """Makes producers whose next flushes raise these errors; keeps what each producer wrote, and how it ended."""

    def __init__(self, *errors: ClientError) -> None:
        self._errors = list(errors)
        self.written: list[list[tuple[str, bytes | None, bytes | None]]] = []
        self.dropped = 0

    def producer(self, mode: ProducerMode, name: str) -> Producers:
        assert (mode.idempotent, mode.transactional, name) == (True, False, "w")
        self.written.append([])
        return self

    def write(self, outputs: list[Output]) -> None:
        assert all(partition == partition_of(b"a", 3) for *_, partition, _, _, _, _ in outputs)
        self.written[-1] += [(topic, value, key) for topic, value, key, *_ in outputs]
        outputs.clear()

    def flush(self) -> None:
        if self._errors:
            raise self._errors.pop(0)

    def drop(self) -> None:
        self.dropped += 1


def send(producers: Producers, *values: bytes) -> list[float]:
    """Sends events; returns the waits between attempts."""
    waits: list[float] = []
    with closing(KafkaSender(cast(Cluster, producers), TopicInfo(TOPIC, "", 3, 1, {}), "w", waits.append)) as sender:
        sender.send(ordered(*values))
    return waits


BOTH = [(TOPIC, b"1", b"a"), (TOPIC, b"2", b"a")]


class Recorder:
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, bytes, int, int | None]]] = []

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        self.calls.append([(name, each.event.value, each.id, each.prev) for name, each in events])

    def close(self) -> None: ...


def test_headers_of_an_event_have_its_id_its_predecessor_its_uuid_and_its_kind() -> None:
    assert headers_of(OrderedEvent(Event(UUID, b""), 7, None)) == [
        ("ks-event-id", b"7"),
        ("ks-event-uuid", UUID.hex().encode()),
        ("ks-event-kind", b"main"),
    ]
    assert headers_of(OrderedEvent(Event(UUID, b"", is_main=False), 9, 7))[2:] == [
        ("ks-event-kind", b"sub"),
        ("ks-event-prev", b"7"),
    ]


def test_bytes_that_are_no_event_of_a_store_are_named() -> None:
    with pytest.raises(DecodeError, match="b'x' is not an event of this store"):
        Event.decode(b"x")


def test_send_writes_events_with_their_object_as_the_key() -> None:
    producers = Producers()
    assert send(producers, b"1", b"2") == []
    assert (producers.written, producers.dropped) == ([BOTH], 1)


def test_send_without_an_answer_waits_for_what_is_queued_and_writes_no_copy() -> None:
    producers = Producers(Retriable("no answer"), Retriable("no answer"))
    assert send(producers, b"1", b"2") == [0.2, 0.4]
    assert (producers.written, producers.dropped) == ([BOTH], 1)


def test_send_that_failed_is_repeated_by_a_new_producer_from_the_first_event() -> None:
    producers = Producers(Abortable("timed out"))
    assert send(producers, b"1", b"2") == [0.2]
    assert (producers.written, producers.dropped) == ([BOTH, BOTH], 2)


@pytest.mark.parametrize("error", [Retriable, Abortable])
def test_send_gives_up_after_some_attempts_with_the_remedy(error: type[ClientError]) -> None:
    producers = Producers(*[error("away")] * (ATTEMPTS_MAX + 1))
    with pytest.raises(BrokerUnavailable) as raised:
        send(producers, b"1", b"2")
    assert str(raised.value) == (
        "ordering worker w: 2 events of 1 objects not acknowledged after 10 attempts, last error: away: repair the "
        "cluster, then start the worker again: it sends them again"
    )


def test_event_that_the_topic_refuses_ends_the_worker_with_the_reason() -> None:
    producers = Producers(Refused(RecordRefused("topic 'events' refuses a record")))
    with pytest.raises(RecordRefused, match="topic 'events' refuses a record"):
        send(producers, b"1")
    assert (producers.written, producers.dropped) == ([[(TOPIC, b"1", b"a")]], 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def run_until_idle(worker: OrderingWorker, storage: Storage) -> None:
    """Runs turns until no object has events, and each lane is idle."""
    for _ in range(100):
        worker.turn(0.0)
        if worker.is_idle and not storage.objects():
            return
    raise AssertionError(f"not idle: {storage.objects()}")


def test_worker_sends_the_events_of_several_objects_in_batches(path: Path) -> None:
    sender = Recorder()
    with closing(Ordering(path, event=Bytes(), data=String())) as ordering, closing(open_storage(path)) as storage:
        for name in "aab":
            assert ordering.enqueue(name, name.upper(), b"main", sub_events=[b"sub"])
        assert ordering.data("a") == "A"
        worker = OrderingWorker(storage, sender, "w", lanes=2, batch=3)
        worker.start()
        run_until_idle(worker, storage)
    by_object = {name: [each[1:] for call in sender.calls for each in call if each[0] == name] for name in "ab"}
    ids = {name: [number for _, number, _ in each] for name, each in by_object.items()}
    assert sorted(ids["a"] + ids["b"]) == [1, 2, 3, 4, 5, 6]
    for name, found in by_object.items():
        expected = [b"main", b"sub"] * (len(found) // 2)
        assert found == list(zip(expected, ids[name], [None, *ids[name]], strict=False))
    assert max(len([each for each in call if each[0] == "a"]) for call in sender.calls) == 3


def test_worker_with_fewer_lanes_finishes_what_the_one_before_it_held(path: Path) -> None:
    sender = Recorder()
    with closing(Ordering(path)) as ordering, closing(open_storage(path)) as storage:
        for name in "abc":
            ordering.enqueue(name, {}, name)
        died = OrderingWorker(storage, sender, "w", lanes=3, batch=1)
        died.start()
        for _ in range(4):  # one lane finds an object, then two
            died.turn(0.0)
        worker = OrderingWorker(storage, sender, "w", lanes=1, batch=1)
        worker.start()
        run_until_idle(worker, storage)
        worker.turn(0.0)
        assert storage.register("w", 1, "p").lanes == 1
    newest = {each[0]: each for call in sender.calls for each in call}
    assert {(name, value) for name, value, *_ in newest.values()} == {("a", b'"a"'), ("b", b'"b"'), ("c", b'"c"')}


def test_worker_that_is_stopped_completes_what_it_has_taken_and_gives_the_rest_back(path: Path) -> None:
    sender = Recorder()
    with closing(Ordering(path)) as ordering, closing(open_storage(path)) as storage:
        for number in range(3):
            ordering.enqueue("a", None, number)
        worker = OrderingWorker(storage, sender, "w", lanes=1, batch=1)
        worker.start()
        while not sender.calls:
            worker.turn(0.0)
        worker.stop()
        while not worker.is_idle:
            worker.turn(0.0)
        assert (sender.calls, storage.objects()) == ([[("a", b"0", 1, None)]], [ObjectStatus("a", 2, 0, 3, None)])


class Refuses(Recorder):
    """A sender that keeps what it is given, and gives up."""

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        super().send(events)
        raise BrokerUnavailable("not acknowledged")


@pytest.mark.parametrize("batch", [1, 2])
def test_worker_whose_events_are_not_acknowledged_keeps_them_with_their_ids(path: Path, batch: int) -> None:
    """EO-26: the store changes only once they are sent."""
    refused, sender = Refuses(), Recorder()
    with closing(Ordering(path)) as ordering, closing(open_storage(path)) as storage:
        for number in range(3):
            ordering.enqueue("a", None, number)
        for start in range(1, 3):
            worker = OrderingWorker(storage, refused, "w", lanes=1, batch=batch)
            with pytest.raises(BrokerUnavailable, match=r"^not acknowledged$"):
                worker.run()
            assert storage.objects() == [ObjectStatus("a", 3 - batch, batch, 2, "w#0")]
            (status,) = storage.workers()
            assert (status.number, dict(status.objects)) == (start, {"w#0": "a"})
        worker = OrderingWorker(storage, sender, "w", lanes=1, batch=batch)
        worker.start()
        run_until_idle(worker, storage)
    first = [("a", b"%d" % number, number + 1, number or None) for number in range(3)]
    assert refused.calls == [first[:batch]] * 2
    assert [each for call in sender.calls for each in call] == first


def test_topic_with_another_number_of_partitions_is_refused_until_it_is_accepted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_storage(path)) as storage:
        check_topic(storage, "t", 3, accepts_partitions=False)
        check_topic(storage, "t", 3, accepts_partitions=True)
        text = f"topic 't' has 6 partitions, but had 3 when events of the store {path} were sent to it"
        remedy = "let the consumers read what was sent, then start with --accept-partitions"
        for _ in range(2):
            with pytest.raises(TopicError, match=f"^{re.escape(text)}: .* {remedy}$"):
                check_topic(storage, "t", 6, accepts_partitions=False)
        assert caplog.messages == []
        check_topic(storage, "t", 6, accepts_partitions=True)
        assert caplog.messages == [f"{text}: objects move to other partitions, as was asked for"]
        check_topic(storage, "t", 6, accepts_partitions=False)
        with pytest.raises(TopicError, match="'t' has 3 partitions, but had 6"):
            check_topic(storage, "t", 3, accepts_partitions=False)


class Away(SQLiteStorage):
    """A store that gives no answer to these calls of `run`, counted from 0: after it has done the steps, or before."""

    def __init__(
        self, path: Path, *, before: Sequence[int] = (), after: Sequence[int] = (), lasts: bool = False
    ) -> None:
        super().__init__(path)
        self._calls = -1
        self._before = before
        self._after = after
        self._lasts = lasts

    def run(self, incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
        self._calls += 1
        gone = StoreUnavailable(f"{self}: gone: start it", may_return=not self._lasts)
        if self._calls in self._before:
            raise gone
        answers = super().run(incarnation, steps)
        if self._calls in self._after:
            raise gone
        return answers


class StopsAt(Recorder):
    """A sender that stops its worker once it was given the event of this value."""

    def __init__(self, value: bytes) -> None:
        super().__init__()
        self._value = value
        self.worker: OrderingWorker | None = None

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        super().send(events)
        if self.worker is not None and self._value in {each.event.value for _, each in events}:
            self.worker.stop()


def run_away(path: Path, sender: Recorder, **away: Any) -> list[float]:
    """Runs a worker whose store is away now and then, until it is stopped; returns its waits."""
    waits: list[float] = []
    with closing(Away(path, **away)) as storage:
        worker = OrderingWorker(storage, sender, "w", lanes=1, batch=1, sleep=waits.append)
        if isinstance(sender, StopsAt):
            sender.worker = worker
        else:
            worker.stop()
        worker.run()
    return waits


@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("when", ["before", "after"])
def test_worker_whose_store_gives_no_answer_waits_and_asks_what_it_holds(
    path: Path, call: int, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    sender = StopsAt(b"2")
    with closing(Ordering(path)) as ordering:
        for number in (1, 2):
            ordering.enqueue("a", None, number)
    assert run_away(path, sender, **{when: [call]}) == [0.2]
    sent = [each for (each,) in sender.calls]
    assert list(dict.fromkeys(sent)) == [("a", b"1", 1, None), ("a", b"2", 2, 1)]
    (warning,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert warning == f"ordering worker w waits for its store: the store {path}: gone: start it"
    with closing(open_storage(path)) as storage:
        assert [(each.number, dict(each.objects)) for each in storage.workers()] == [(2, {})]


def test_worker_waits_longer_for_a_store_that_stays_away(path: Path) -> None:
    sender = StopsAt(b"1")
    with closing(Ordering(path)) as ordering:
        ordering.enqueue("a", None, 1)
    assert run_away(path, sender, before=range(8)) == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert sender.calls == [[("a", b"1", 1, None)]]


def test_worker_that_is_stopped_does_not_wait_for_a_store_that_stays_away(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="start it; what worker w holds waits for its next start, or a takeover"):
        run_away(path, Recorder(), before=range(100))
    with closing(open_storage(path)) as storage:
        assert [each.number for each in storage.workers()] == [STOP_ATTEMPTS]


def test_worker_ends_at_once_if_its_store_will_not_return_by_itself(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"gone: start it$"):
        run_away(path, StopsAt(b"1"), before=[1], lasts=True)


def test_events_that_are_acknowledged_after_all_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    send(Producers(Retriable("no answer")), b"1")
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "ordering worker w: no answer; trying again"),
        ("INFO", "ordering worker w: the events are acknowledged"),
    ]


def test_change_that_was_queued_by_an_earlier_attempt_is_no_second_one(path: Path) -> None:
    uuid = uuid4()
    with closing(Ordering(path)) as ordering, closing(open_storage(path)) as storage:
        assert [ordering.enqueue("a", {}, 1, sub_events=[2], uuid=uuid) for _ in range(2)] == [True, False]
        assert storage.objects() == [ObjectStatus("a", 2, 0, 1, None)]


def test_event_that_its_topic_does_not_take_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    with closing(Ordering(tmp_path / "events.db", event=String(), event_max=10)) as ordering:
        assert ordering.enqueue("a", 1, "x" * 10)
        for event, others in (("x" * 11, ()), ("x", ["x" * 11])):
            with pytest.raises(RecordTooLarge, match=r"^an event of 11 bytes: the topic takes 10: send a reference"):
                ordering.enqueue("a", 2, event, sub_events=others)
        assert ordering.data("a") == 1


def test_event_of_no_object_is_refused_and_nothing_is_stored(path: Path) -> None:
    with closing(Ordering(path)) as ordering, closing(open_storage(path)) as storage:
        with pytest.raises(SettingsError, match="an event needs the object that it belongs to: its key is empty"):
            ordering.enqueue("", {}, 1)
        assert storage.objects() == []


def test_address_that_is_no_store_is_refused(path: Path) -> None:
    with pytest.raises(SettingsError, match="postgresql:// is not a store of events: name redis://host:port/0, or the"):
        open_storage("postgresql://host/db")
    with pytest.raises(SettingsError, match="a prefix is for the keys of a store in Redis"):
        open_storage(path, "mine:")


def test_code_of_the_document_queues_a_change_and_its_headers_are_those_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "ordering.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- front_end.py -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    with closing(open_storage("flights.db")) as storage, closing(names["ordering"]):
        assert storage.objects() == [ObjectStatus("N14228", 2, 0, 1, None)]
        assert storage.data("N14228") == b'{"departed":"EWR","bags":81}'
    written = {name for name, _ in headers_of(OrderedEvent(Event(UUID, b""), 2, 1))}
    assert set(re.findall(r"^\| `(ks-event-\w+)`", text, flags=re.MULTILINE)) == written
