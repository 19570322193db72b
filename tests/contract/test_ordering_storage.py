"""Stores of queued events: each change and each step is atomic, whichever store it is."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

import pytest
import redis

from bench.servers import Server, start_redis
from kstreams_py.errors import InputLost, Replaced, SettingsError, StoreUnavailable, TopicError
from kstreams_py.ordering.events import Change, Event, Work
from kstreams_py.ordering.redis import RedisStorage
from kstreams_py.ordering.sending import check_topic
from kstreams_py.ordering.sqlite import SQLiteStorage
from kstreams_py.ordering.steps import (
    TOKENS_MAX,
    Begin,
    BegunObject,
    Complete,
    Drop,
    Find,
    Own,
    Pop,
    Resume,
    Return,
    Take,
)
from kstreams_py.ordering.storage import Incarnation, ObjectStatus, Storage, WorkerStatus
from kstreams_py.sinks import sqlite
from tests.tables import each_case

Open = Callable[[], Storage]


@pytest.fixture(params=["sqlite", "redis"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens connections to one store, which is empty at first."""
    with ExitStack() as stack:
        prefix = f"{uuid4().hex}*[1]:"
        server: Server | None = request.getfixturevalue("redis_server") if request.param == "redis" else None

        def connect() -> Storage:
            store: Storage
            if server is None:
                store = SQLiteStorage(tmp_path / "events.db")
            else:
                store = RedisStorage(f"redis://127.0.0.1:{server.port}/0", prefix)
            stack.enter_context(closing(store))
            return store

        yield connect


@pytest.fixture
def store(connect: Open) -> Storage:
    return connect()


def change(name: str, *values: bytes, data: bytes | None = b"{}", uuid: UUID | None = None) -> Change:
    """A change with a main event, and sub-events after it."""
    uuid = uuid or uuid4()
    events = [Event(uuid5(uuid, str(n)).bytes if n else uuid.bytes, value, n == 0) for n, value in enumerate(values)]
    return Change(name, data, tuple(events))


def values(work: Any) -> list[tuple[bytes, int, int | None]]:
    assert isinstance(work, Work)
    return [(each.event.value, each.id, each.prev) for each in work]


def test_change_is_stored_with_its_state_its_events_in_order_and_one_token(store: Storage) -> None:
    first = change("work:1", b"main", b"sub 1", b"sub 2", data=b"state")
    assert store.enqueue([first]) == [True]
    assert store.data("work:1") == b"state"
    assert store.objects() == [ObjectStatus("work:1", 3, 0, 1, None)]
    me = store.register("w", 1, "p")
    assert store.run(me, [Take("w#0"), Own("w#0", "work:1")]) == ["work:1", True]
    (work,) = store.run(me, [Pop("w#0", "work:1", 10)])
    assert isinstance(work, Work)
    assert tuple(work.events) == first.events
    assert values(work) == [(b"main", 1, None), (b"sub 1", 2, 1), (b"sub 2", 3, 2)]


def test_changes_of_several_objects_are_stored_in_one_call(store: Storage) -> None:
    assert store.enqueue([change("a", b"1"), change("b", b"2"), change("a", b"3", data=None)]) == [True] * 3
    assert store.objects() == [ObjectStatus("a", 2, 0, 2, None), ObjectStatus("b", 1, 0, 1, None)]
    assert store.objects(["b", "c"]) == [ObjectStatus("b", 1, 0, 1, None)]


def test_change_without_state_leaves_that_of_the_object(store: Storage) -> None:
    store.enqueue([change("a", b"1", data=b"first"), change("a", b"2", data=None)])
    assert store.data("a") == b"first"
    assert store.data("b") is None


def test_another_attempt_of_a_front_end_is_no_second_change(store: Storage, connect: Open) -> None:
    uuid = uuid4()
    assert store.enqueue([change("a", b"1", b"2", data=b"first", uuid=uuid)]) == [True]
    assert store.enqueue([change("a", b"3", data=b"newer")]) == [True]
    assert connect().enqueue([change("a", b"1", b"2", data=b"first", uuid=uuid)]) == [False]
    assert store.data("a") == b"newer"
    assert store.objects() == [ObjectStatus("a", 3, 0, 2, None)]


def test_events_of_front_ends_at_the_same_time_keep_together(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """EO-20: the events of one change are contiguous."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 60.0)  # SQLite does not let writers wait in turn
    stores = [connect() for _ in range(4)]

    def queue(number: int) -> None:
        for at in range(25):
            stores[number].enqueue([change("a", *(f"{number}.{at}.{n}".encode() for n in range(3)))])

    threads = [threading.Thread(target=queue, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    me = stores[0].register("w", 1, "p")
    work = stores[0].run(me, [Take("w#0"), Own("w#0", "a"), Pop("w#0", "a", 1_000)])[-1]
    found = [value.decode().rpartition(".") for value, *_ in values(work)]
    assert [n for *_, n in found] == ["0", "1", "2"] * 100
    assert [found[at][0] for at in range(0, 300, 3)] == [found[at][0] for at in range(2, 300, 3)]


def test_take_moves_the_oldest_token_to_the_lane(store: Storage) -> None:
    store.enqueue([change("a", b"1"), change("b", b"2")])
    me = store.register("w", 2, "p")
    assert store.run(me, [Find("w#0"), Take("w#0"), Find("w#0"), Take("w#1")]) == [None, "a", "a", "b"]
    assert store.run(me, [Drop("w#0"), Find("w#0"), Take("w#0"), Find("w#1")]) == [None, None, None, "b"]


def test_begin_takes_the_events_of_the_first_object_that_has_some_and_no_owner(store: Storage) -> None:
    """It does what take, own, pop and drop do one after the other."""
    store.enqueue([change("a", b"1"), change("a", b"2"), change("b", b"3", b"4", b"5"), change("b", b"6")])
    me = store.register("w", 3, "p")
    (begun,) = store.run(me, [Begin("w#0", 5)])
    assert isinstance(begun, BegunObject)
    assert (begun.object, values(begun.work)) == ("a", [(b"1", 1, None), (b"2", 2, 1)])
    (begun,) = store.run(me, [Begin("w#1", 2)])
    assert isinstance(begun, BegunObject)
    assert (begun.object, values(begun.work)) == ("b", [(b"3", 3, None), (b"4", 4, 3)])
    assert store.objects() == [ObjectStatus("a", 0, 2, 0, "w#0"), ObjectStatus("b", 2, 2, 1, "w#1")]
    assert store.run(me, [Begin("w#2", 2), Find("w#0"), Find("w#1"), Find("w#2")]) == [None, "a", "b", None]
    assert store.objects() == [ObjectStatus("a", 0, 2, 0, "w#0"), ObjectStatus("b", 2, 2, 0, "w#1")]
    (more,) = store.run(me, [Complete("w#1", "b", 4), Pop("w#1", "b", 9)])[1:]
    assert values(more) == [(b"5", 5, 4), (b"6", 6, 5)]


def test_begin_looks_at_some_tokens_and_leaves_the_others(store: Storage) -> None:
    store.enqueue([change("a", b"1") for _ in range(TOKENS_MAX + 5)])
    me = store.register("w", 2, "p")
    (begun,) = store.run(me, [Begin("w#0", 1_000)])
    assert isinstance(begun, BegunObject)
    assert len(begun.work.events) == TOKENS_MAX + 5
    assert store.run(me, [Begin("w#1", 1)]) == [None]
    assert store.objects() == [ObjectStatus("a", 0, TOKENS_MAX + 5, 4, "w#0")]


def test_only_one_lane_owns_an_object(store: Storage) -> None:
    store.enqueue([change("a", b"1"), change("a", b"2")])
    one, two = store.register("one", 1, "p"), store.register("two", 1, "p")
    assert store.run(one, [Take("one#0")]) == ["a"]
    assert store.run(two, [Take("two#0"), Own("two#0", "a")]) == ["a", True]
    assert store.run(one, [Own("one#0", "a")]) == [False]
    assert store.run(two, [Own("two#0", "a")]) == [True]
    assert store.objects() == [ObjectStatus("a", 2, 0, 0, "two#0")]


def test_pop_takes_the_oldest_events_up_to_the_limit_and_numbers_them(store: Storage) -> None:
    store.enqueue([change("a", *(str(n).encode() for n in range(5))), change("b", b"x")])
    me = store.register("w", 2, "p")
    store.run(me, [Take("w#0"), Own("w#0", "a"), Take("w#1"), Own("w#1", "b")])
    first, other = store.run(me, [Pop("w#0", "a", 3), Pop("w#1", "b", 1)])
    assert values(first) == [(b"0", 1, None), (b"1", 2, 1), (b"2", 3, 2)]
    assert values(other) == [(b"x", 4, None)]
    assert store.objects() == [ObjectStatus("a", 2, 3, 0, "w#0"), ObjectStatus("b", 0, 1, 0, "w#1")]
    _, second = store.run(me, [Complete("w#0", "a", 3), Pop("w#0", "a", 3)])
    assert values(second) == [(b"3", 5, 3), (b"4", 6, 5)]


def test_pop_of_an_object_without_events_releases_it(store: Storage) -> None:
    store.enqueue([change("a", b"1")])
    me = store.register("w", 1, "p")
    store.run(me, [Take("w#0"), Own("w#0", "a"), Pop("w#0", "a", 1)])
    assert store.run(me, [Complete("w#0", "a", 1), Pop("w#0", "a", 1)]) == [None, Work()]
    assert store.objects() == []
    assert store.run(me, [Find("w#0"), Drop("w#0"), Find("w#0")]) == ["a", None, None]


def test_events_queued_behind_a_release_have_a_token_of_their_own(store: Storage) -> None:
    """EO-24: an event is either taken by the owner, or has a token, and no owner."""
    store.enqueue([change("a", b"1")])
    me = store.register("w", 1, "p")
    store.run(me, [Take("w#0"), Own("w#0", "a"), Pop("w#0", "a", 1)])
    store.enqueue([change("a", b"2")])
    completed, taken = store.run(me, [Complete("w#0", "a", 1), Pop("w#0", "a", 1)])
    assert values(taken) == [(b"2", 2, 1)]
    store.run(me, [Complete("w#0", "a", 2), Pop("w#0", "a", 1)])
    store.enqueue([change("a", b"3")])
    assert completed is None
    assert store.objects() == [ObjectStatus("a", 1, 0, 2, None)]


def test_worker_that_starts_again_finds_what_it_had_taken(store: Storage, connect: Open) -> None:
    store.enqueue([change("a", b"1", b"2", b"3")])
    me = store.register("w", 1, "p")
    store.run(me, [Take("w#0"), Own("w#0", "a"), Pop("w#0", "a", 1)])
    store.run(me, [Complete("w#0", "a", 1)])
    (before,) = store.run(me, [Pop("w#0", "a", 2)])
    again = connect()
    me = again.register("w", 1, "p")
    assert again.run(me, [Find("w#0"), Own("w#0", "a"), Resume("w#0", "a")]) == ["a", True, before]
    assert values(before) == [(b"2", 2, 1), (b"3", 3, 2)]
    assert again.run(me, [Complete("w#0", "a", 3), Resume("w#0", "a")]) == [None, Work()]


def test_object_that_is_given_back_is_the_next_to_be_taken(store: Storage) -> None:
    store.enqueue([change("a", b"1"), change("b", b"2"), change("b", b"3"), change("c", b"4")])
    me = store.register("w", 3, "p")
    store.run(me, [Take("w#0"), Own("w#0", "a"), Take("w#1"), Own("w#1", "b"), Take("w#2"), Own("w#2", "b")])
    store.run(me, [Return("w#2", "b")])
    assert store.objects() == [
        ObjectStatus("a", 1, 0, 0, "w#0"),
        ObjectStatus("b", 2, 0, 1, "w#1"),
        ObjectStatus("c", 1, 0, 1, None),
    ]
    store.run(me, [Return("w#0", "a")])
    assert store.run(me, [Find("w#0"), Take("w#0"), Own("w#0", "a"), Take("w#2")]) == [None, "a", True, "b"]


def test_older_process_of_a_worker_is_refused_and_changes_nothing(store: Storage, connect: Open) -> None:
    """EF15: a worker that was frozen, while another process was started under its name."""
    store.enqueue([change("a", b"1"), change("b", b"2")])
    old = store.register("w", 1, "p")
    store.run(old, [Take("w#0"), Own("w#0", "a"), Pop("w#0", "a", 1)])
    new = connect().register("w", 1, "q")
    assert new.number == old.number + 1
    standing = store.objects()
    for steps in ([Complete("w#0", "a", 1)], [Take("w#0")], [Drop("w#0")], [Pop("w#0", "a", 1)], [Own("w#0", "b")]):
        with pytest.raises(Replaced, match=r"worker 'w' was started again elsewhere.*--name"):
            store.run(old, steps)
    with pytest.raises(Replaced, match="worker 'w' was started again"):
        store.retire(old, 0)
    with pytest.raises(Replaced, match="worker 'w' was started again"):
        store.register("w", 1, "p", again=True)
    assert store.objects() == standing
    assert values(store.run(new, [Resume("w#0", "a")])[0]) == [(b"1", 1, None)]


def test_process_that_registers_again_refuses_its_own_steps_that_come_late(store: Storage, connect: Open) -> None:
    """EF16: a step without an answer may reach the store after the process has asked what it holds."""
    store.enqueue([change("a", b"1", b"2")])
    before = store.register("w", 1, "p")
    store.run(before, [Take("w#0"), Own("w#0", "a"), Pop("w#0", "a", 1)])
    again = connect().register("w", 1, "p", again=True)
    assert again.number == before.number + 1
    store.run(again, [Find("w#0"), Own("w#0", "a"), Complete("w#0", "a", 1), Pop("w#0", "a", 1)])
    for late in (lambda: store.run(before, [Complete("w#0", "a", 1)]), lambda: store.retire(before, 0)):
        with pytest.raises(StoreUnavailable, match="this process's earlier attempt to register came late") as raised:
            late()
        assert raised.value.may_return
    assert values(store.run(again, [Resume("w#0", "a")])[0]) == [(b"2", 2, 1)]


def test_store_that_has_forgotten_a_worker_is_not_used_by_it(store: Storage) -> None:
    gone = Incarnation("w", 3, 1, "p")
    for call in (
        lambda: store.run(gone, [Take("w#0")]),
        lambda: store.retire(gone, 1),
        lambda: store.register("w", 1, "p", again=True),
    ):
        with pytest.raises(InputLost, match="has forgotten worker 'w', and perhaps events and assigned ids"):
            call()
    assert store.workers() == []


def test_lanes_of_the_process_before_are_kept_until_they_are_retired(store: Storage) -> None:
    assert store.register("w", 4, "p").lanes == 4
    fewer = store.register("w", 2, "p")
    assert fewer.lanes == 4
    store.retire(fewer, 2)
    assert store.register("w", 1, "p").lanes == 2


def test_ids_are_not_used_again(store: Storage, connect: Open) -> None:
    for expected, opened in enumerate((store, connect(), connect()), 1):
        opened.enqueue([change("a", b"1")])
        me = opened.register("w", 1, "p")
        opened.run(me, [Take("w#0"), Own("w#0", "a")])
        (work,) = opened.run(me, [Pop("w#0", "a", 1)])
        assert values(work) == [(b"1", expected, expected - 1 or None)]
        opened.run(me, [Complete("w#0", "a", expected), Pop("w#0", "a", 1), Drop("w#0")])


def test_topic_and_its_number_of_partitions_are_kept_until_others_are_accepted(store: Storage, connect: Open) -> None:
    assert store.note_topic("t", 3, change=False) == ("t", 3)
    other = connect()
    assert other.note_topic("u", 1, change=False) == ("t", 3), "events are sent to one topic"
    assert other.note_topic("t", 6, change=False) == ("t", 3)
    assert other.note_topic("t", 6, change=True) == ("t", 6)
    assert store.note_topic("u", 1, change=True) == ("u", 1)
    assert [each.note_topic("t", 6, change=False) for each in (store, other)] == [("u", 1)] * 2


def test_worker_with_another_topic_than_the_others_is_refused_until_it_is_accepted(
    store: Storage, connect: Open, caplog: pytest.LogCaptureFixture
) -> None:
    check_topic(store, "t", 3)
    check_topic(connect(), "t", 3)
    text = f"events of {store} are sent to topic 't', and not to 'u'"
    for accepts in (False, True):
        with pytest.raises(TopicError, match=f"^{re.escape(text)}: an object's .*: name --topic t; or stop all"):
            check_topic(connect(), "u", 3, accepts_partitions=accepts)
    check_topic(store, "t", 3)

    def warnings() -> list[str]:
        return [each.message for each in caplog.records if each.name == "kstreams_py.ordering.sending"]

    assert warnings() == []
    check_topic(store, "u", 1, accepts_topic=True)
    assert warnings() == [f"{text}: the next ones are sent to the other topic, as was asked for"]
    with pytest.raises(TopicError, match="are sent to topic 'u', and not to 't': "):
        check_topic(connect(), "t", 3)


def test_two_equal_events_are_two(store: Storage) -> None:
    store.enqueue([change("a", b"same"), change("a", b"same")])
    me = store.register("w", 1, "p")
    (*_, work) = store.run(me, [Take("w#0"), Own("w#0", "a"), Pop("w#0", "a", 1)])
    assert values(work) == [(b"same", 1, None)]
    assert store.objects() == [ObjectStatus("a", 1, 1, 1, "w#0")]


def test_wait_ends_with_a_token_which_stays(store: Storage, connect: Open) -> None:
    other = connect()
    ended = threading.Event()

    def wait() -> None:
        other.await_token(60)
        ended.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    store.enqueue([change("a", b"1")])
    assert ended.wait(60)
    store.await_token(60)
    assert store.objects() == [ObjectStatus("a", 1, 0, 1, None)]


def test_wait_without_a_token_ends_in_time(store: Storage) -> None:
    store.await_token(0.01)
    store.await_token(0)
    assert store.objects() == []


def test_workers_are_shown_with_what_they_hold(store: Storage) -> None:
    assert store.workers() == []
    store.enqueue([change("a", b"1"), change("b", b"2")])
    one = store.register("one", 2, "p")
    store.register("two", 1, "p")
    store.run(one, [Take("one#1"), Own("one#1", "a")])
    found = store.workers()
    assert all(0 <= each.seconds < 600 for each in found)
    assert found == [
        WorkerStatus("one", 1, found[0].seconds, {"one#1": "a"}),
        WorkerStatus("two", 1, found[1].seconds, {}),
    ]


def test_any_bytes_and_names_are_kept(store: Storage) -> None:
    name, data, value = "a:events é\n", bytes(range(256)), bytes(reversed(range(256)))
    store.enqueue([change(name, value, data=data), change("event.worker", b"", data=b"")])
    me = store.register("w", 1, "p")
    assert store.data(name) == data
    (token, owned, work) = store.run(me, [Take("w#0"), Own("w#0", name), Pop("w#0", name, 2)])
    assert (token, owned, values(work)) == (name, True, [(value, 1, None)])
    assert store.objects() == [ObjectStatus(name, 0, 1, 0, "w#0"), ObjectStatus("event.worker", 1, 0, 1, None)]


def test_change_of_no_object_and_one_without_a_main_event_are_refused() -> None:
    with pytest.raises(SettingsError, match="an event needs the object that it belongs to"):
        change("", b"1")
    for events in ((), (Event(bytes(16), b"", is_main=False),), (Event(bytes(16), b""), Event(bytes(16), b""))):
        with pytest.raises(SettingsError, match="a: a change has one main event"):
            Change("a", None, events)


def test_sqlite_file_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (x)")
    with pytest.raises(SettingsError, match=r"other\.db is a database of another program: name another file"):
        SQLiteStorage(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == [("CREATE TABLE events (x)",)]


def test_sqlite_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    SQLiteStorage(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(SettingsError, match=r"another version of kstreams_py \(format 7, here 2\)"):
        SQLiteStorage(path)


def test_sqlite_file_that_cannot_be_used_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"events\.db: .*: make its directory"):
        SQLiteStorage(tmp_path / "missing" / "events.db")


def test_redis_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(StoreUnavailable) as raised:
        RedisStorage("redis://user:secret@127.0.0.1:1/0")
    assert "the store redis://127.0.0.1:1/0" in str(raised.value)
    assert "secret" not in str(raised.value)
    with pytest.raises(SettingsError, match=r"^Redis needs a URL such as redis://"):
        RedisStorage("postgres://user:secret@host/0")


def test_sqlite_file_that_is_locked_may_return_and_one_without_a_directory_will_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    path = tmp_path / "events.db"
    with closing(SQLiteStorage(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="end the program that has locked it") as locked:
            store.register("w", 1, "p")
        other.execute("ROLLBACK")
        assert (locked.value.may_return, store.register("w", 1, "p").number) == (True, 1)
    with pytest.raises(StoreUnavailable) as missing:
        SQLiteStorage(tmp_path / "missing" / "events.db")
    assert not missing.value.may_return


def test_sqlite_file_is_opened_and_read_while_another_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    path = tmp_path / "events.db"
    with closing(SQLiteStorage(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        store.enqueue([change("a", b"1", data=b"state")])
        store.note_topic("t", 3, change=False)
        other.execute("BEGIN IMMEDIATE")
        with closing(SQLiteStorage(path)) as second:
            assert second.data("a") == b"state"
            assert second.objects() == [ObjectStatus("a", 1, 0, 1, None)]
            assert second.note_topic("other", 5, change=False) == ("t", 3)
            with pytest.raises(StoreUnavailable, match="end the program that has locked it"):
                second.note_topic("other", 5, change=True)


def test_sqlite_file_is_created_once_by_processes_that_open_it_at_the_same_time(tmp_path: Path) -> None:
    def open_store(path: Path, opened: list[SQLiteStorage]) -> None:
        opened.append(SQLiteStorage(path))

    for number in range(20):
        opened: list[SQLiteStorage] = []
        threads = [threading.Thread(target=open_store, args=[tmp_path / f"{number}.db", opened]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for store in opened:
            store.close()
        assert len(opened) == 4


def test_redis_that_is_away_may_return_and_one_that_refuses_the_password_will_not() -> None:
    with closing(start_redis()) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        with closing(RedisStorage(url)) as store:
            server.stop()
            with pytest.raises(StoreUnavailable, match="start the server, or correct its settings") as away:
                store.register("w", 1, "p")
            server.start()
            assert (away.value.may_return, store.register("w", 1, "p").number) == (True, 1)
        with pytest.raises(StoreUnavailable) as refused:
            RedisStorage(url.replace("redis://", "redis://user:secret@"))
    assert not refused.value.may_return


def test_redis_cluster_is_refused_with_the_reason() -> None:
    with (
        closing(start_redis(in_cluster=True)) as server,
        pytest.raises(
            SettingsError, match="part of a Redis Cluster, where no transaction covers keys of several nodes"
        ),
    ):
        RedisStorage(f"redis://127.0.0.1:{server.port}/0")


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        (("--appendonly", "no"), ["appendonly is off"]),
        (("--appendonly", "yes", "--appendfsync", "everysec"), ["appendfsync is everysec"]),
        (("--appendonly", "yes", "--appendfsync", "always"), []),
        (
            (
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--maxmemory",
                "9mb",
                "--maxmemory-policy",
                "allkeys-lru",
            ),
            ["maxmemory-policy allkeys-lru"],
        ),
    ],
    ids=["no file", "every second", "always", "evicts"],
)
def test_redis_that_keeps_too_little_is_warned_of_with_the_setting(
    options: tuple[str, ...], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(start_redis(*options)) as server, closing(RedisStorage(f"redis://127.0.0.1:{server.port}/0")):
        pass
    assert len(caplog.messages) == len(warnings)
    assert all(words in message for words, message in zip(warnings, caplog.messages, strict=True))


def test_redis_that_forgets_its_scripts_gets_them_again(redis_server: Server) -> None:
    import redis  # noqa: PLC0415

    url = f"redis://127.0.0.1:{redis_server.port}/0"
    with closing(RedisStorage(url, uuid4().hex)) as store, redis.Redis.from_url(url) as client:
        store.enqueue([change("a", b"1")])
        client.script_flush()
        assert store.enqueue([change("a", b"2"), change("b", b"3")]) == [True, True]
        me = store.register("w", 2, "p")
        client.script_flush()
        assert store.run(me, [Take("w#0"), Take("w#1"), Find("w#0")]) == ["a", "a", "a"]


def test_keys_in_redis_are_those_of_the_document(redis_server: Server) -> None:
    import redis  # noqa: PLC0415

    url, prefix = f"redis://127.0.0.1:{redis_server.port}/0", f"{uuid4().hex}:"
    with closing(RedisStorage(url, prefix)) as store, redis.Redis.from_url(url) as client:
        first = change("OBJ", b"1", b"2")
        store.enqueue([first, change("OBJ", b"3")])
        store.note_topic("events", 3, change=False)
        me = store.register("NAME", 1, "p")
        store.run(me, [Take("NAME#0"), Own("NAME#0", "OBJ"), Pop("NAME#0", "OBJ", 1), Complete("NAME#0", "OBJ", 1)])
        store.run(me, [Pop("NAME#0", "OBJ", 1)])
        found = {key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}*")}
    text = (Path(__file__).parents[2] / "docs" / "ordering.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", text.partition("## The keys in Redis")[2], flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(.*?)`", row)}
    lane = {f"event.worker:L{name}" for name in named if name.startswith(":")}
    expected = {each for each in named if not each.startswith(":")} | lane
    assert {re.sub(r"(?<=change:)\w+", "UUID", each.replace("NAME#0", "L")) for each in found} == expected


FOREIGN: Final[dict[str, Callable[[Any, str], object]]] = {
    "workers that are not text": lambda client, prefix: client.sadd(f"{prefix}event.workers", b"\xff"),
    "a worker without a number": lambda client, prefix: client.sadd(f"{prefix}event.workers", "w"),
    "a worker whose number is none": lambda client, prefix: (
        client.sadd(f"{prefix}event.workers", "w"),
        client.hset(f"{prefix}event.worker:w", mapping={"number": "x", "lanes": "1", "heard": "0"}),
    ),
    "workers that are not a set": lambda client, prefix: client.set(f"{prefix}event.workers", "w"),
    "a token that is not text": lambda client, prefix: client.lpush(f"{prefix}objects.with.events", b"\xff"),
    "tokens that are not a list": lambda client, prefix: client.set(f"{prefix}objects.with.events", "x"),
    "an object that is not text": lambda client, prefix: client.lpush(prefix.encode() + b"\xff:events", "x"),
    "an event that is none": lambda client, prefix: (
        client.lpush(f"{prefix}work:events", b"x"),
        client.lpush(f"{prefix}objects.with.events", "work"),
    ),
    "a topic that is not text": lambda client, prefix: client.hset(f"{prefix}event.topics", b"\xff", "3"),
    "partitions that are not a number": lambda client, prefix: client.hset(f"{prefix}event.topics", "topic", "x"),
}
"""What others have stored under the keys of a store in Redis."""


@each_case("name", FOREIGN)
def test_keys_in_redis_that_others_have_written_are_named_with_the_remedy(redis_server: Server, name: str) -> None:
    prefix, url = f"{uuid4().hex}:", f"redis://127.0.0.1:{redis_server.port}/0"
    with redis.Redis.from_url(url) as client:
        FOREIGN[name](client, prefix)

    def use(store: Storage) -> None:
        """What a worker does, and what is shown to operators."""
        store.workers()
        store.objects()
        store.note_topic("topic", 3, change=False)
        store.run(store.register("me", 1, "p"), [Begin("me#0", 10)])

    with closing(RedisStorage(url, prefix)) as store, pytest.raises(StoreUnavailable) as raised:
        use(store)
    assert f"delete others' keys that begin with {prefix!r}, or choose another prefix" in str(raised.value)
    assert not raised.value.may_return
