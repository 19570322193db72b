"""What every source does: claims, acknowledgements, and what becomes of the claims of the dead."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import sources
from kstreams_py.errors import SettingsError, SourceUnavailable
from kstreams_py.graph.source import SourceConnection
from kstreams_py.sources import sqlite
from kstreams_py.sources.suspects import DEATHS_MAX

LEASE = 10.0

READER = "shop.orders"


class Medium:
    """A table with rows, the clock of its leases, and the connections that a test opens."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, 100.0
        self._opened: list[SourceConnection] = []
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")

    def insert(self, *ids: int) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany("INSERT INTO orders VALUES (?, ?)", [(each, f"item {each}") for each in ids])

    def run(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def open(self, reader: str = READER, **options: Any) -> SourceConnection:
        source = sources.SQLite(self.path, **{"table": "orders", "key": "id", "lease": LEASE, **options})
        self._opened.append(source.open(reader))
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture
def medium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Medium]:
    found = Medium(tmp_path / "shop.db")
    monkeypatch.setattr(sqlite, "read_clock", lambda: found.now)
    with closing(found):
        yield found


def read(connection: SourceConnection, limit: int = 100, *, alone: bool = True) -> list[int]:
    """Claims inputs, and returns their numbers."""
    return [claim.value["id"] for claim in connection.read(limit, alone=alone)]


def test_inputs_are_read_once_whole_and_in_the_order_of_their_keys(medium: Medium) -> None:
    medium.insert(2, 1, 3)
    connection = medium.open()
    first, second = connection.read(2, alone=True)
    assert (first.key, first.value, first.attempts) == (1, {"id": 1, "item": "item 1"}, 0)
    assert (second.key, read(connection), read(connection)) == (2, [3], [])


def test_acknowledged_inputs_are_never_read_again_by_any_connection(medium: Medium) -> None:
    medium.insert(1, 2)
    connection = medium.open()
    connection.ack(connection.read(1, alone=True))
    connection.give_back(connection.read(1, alone=True), failed=False)
    medium.run("UPDATE orders SET item = 'changed'")
    medium.now += 2 * LEASE
    assert read(medium.open()) == [2]


def test_two_readers_of_one_graph_share_the_inputs_and_another_graph_gets_all(medium: Medium) -> None:
    medium.insert(*range(6))
    one, other, another_graph = medium.open(), medium.open(), medium.open("books.orders")
    assert (read(one, 2), read(other, 2), read(one), read(other)) == ([0, 1], [2, 3], [4, 5], [])
    assert read(another_graph) == [*range(6)]


def test_inputs_that_come_later_are_read_also_those_with_a_lower_key(medium: Medium) -> None:
    medium.insert(10)
    connection = medium.open()
    assert (read(connection), read(connection)) == ([10], [])
    medium.insert(5, 20)
    medium.now += 1
    assert read(connection) == [5, 20]


def test_claims_of_a_silent_reader_are_taken_over_after_their_lease(medium: Medium) -> None:
    medium.insert(1, 2)
    dead, living = medium.open(), medium.open()
    claims = dead.read(100, alone=True)
    medium.now += LEASE - 1
    assert read(living) == []
    medium.now += LEASE / 2
    assert [(claim.key, claim.attempts) for claim in living.read(100, alone=True)] == [(1, 1), (2, 1)]
    dead.ack(claims)  # it was only frozen: its claims are no longer its own
    medium.now += 2 * LEASE
    assert read(medium.open()) == [1, 2]


def test_claims_of_a_reader_that_keeps_them_stay_its_own(medium: Medium) -> None:
    medium.insert(1)
    slow, other = medium.open(), medium.open()
    claims = slow.read(100, alone=True)
    for _ in range(4):
        medium.now += LEASE * 0.9
        slow.keep()
        assert read(other) == []
    slow.ack(claims)
    medium.now += 2 * LEASE
    assert read(other) == []


@pytest.mark.parametrize(("failed", "attempts"), [(False, 0), (True, 1)])
def test_inputs_that_are_given_back_are_read_again_at_once(medium: Medium, *, failed: bool, attempts: int) -> None:
    medium.insert(1)
    connection = medium.open()
    connection.give_back(connection.read(100, alone=True), failed=failed)
    assert [(claim.key, claim.attempts) for claim in connection.read(100, alone=True)] == [(1, attempts)]


def test_refused_inputs_are_not_read_again_and_their_reason_is_kept(medium: Medium) -> None:
    medium.insert(1, 2)
    connection = medium.open()
    first, second = connection.read(100, alone=True)
    connection.refuse([(first, "parse: ValueError: no number")])
    connection.ack([second])
    medium.now += 2 * LEASE
    assert read(medium.open()) == []
    kept = medium.run("SELECT key, reason FROM kstreams_claims WHERE state = 3")
    assert kept == [(1, "parse: ValueError: no number")]


def deaths(medium: Medium, poison: int) -> list[list[int]]:
    """Runs readers until nothing is left; each that reads `poison` dies. Returns what was under way at each death."""
    died: list[list[int]] = []
    for _ in range(100_000):
        connection = medium.open()
        while claims := connection.read(10_000, alone=True):
            if poison in (numbers := [claim.value["id"] for claim in claims]):
                died.append(numbers)
                break
            connection.ack(claims)
        else:
            return died
        medium.now += 2 * LEASE
    raise AssertionError("it does not end")


def test_input_that_ends_its_workers_is_refused_and_all_others_are_read(medium: Medium) -> None:
    medium.insert(*range(5_000))
    died = deaths(medium, poison=1_234)
    assert [len(each) for each in died] == [5_000, 5_000, 1_000, 30, 1]
    assert len(died) == DEATHS_MAX
    states = medium.run("SELECT state, count(*), max(key) FROM kstreams_claims GROUP BY state")
    assert states == [(2, 4_999, 4_999), (3, 1, 1_234)]
    assert medium.run("SELECT reason FROM kstreams_claims WHERE state = 3") == [
        ("its worker died 5 times while it was under way",)
    ]


def test_suspects_wait_until_nothing_else_is_under_way(medium: Medium) -> None:
    medium.insert(*range(10))
    for _ in range(2):
        medium.open().read(10, alone=True)
        medium.now += 2 * LEASE
    medium.insert(10)
    connection = medium.open()
    assert (read(connection, alone=False), connection.waits_alone) == ([], True)
    claims = connection.read(100, alone=True)
    assert [claim.value["id"] for claim in claims] == [*range(10)]
    connection.ack(claims)
    assert (read(connection), connection.waits_alone) == ([10], False)


def test_source_that_ends_is_exhausted_once_every_input_is_acknowledged(medium: Medium) -> None:
    medium.insert(1)
    connection, other = medium.open(ends=True), medium.open(ends=True)
    claims = connection.read(100, alone=True)
    medium.now += 1
    assert (read(other), other.is_exhausted) == ([], False)
    connection.ack(claims)
    medium.now += 1
    assert (read(other), other.is_exhausted) == ([], True)


def test_source_that_does_not_end_is_never_exhausted(medium: Medium) -> None:
    connection = medium.open()
    assert (read(connection), connection.is_exhausted) == ([], False)


def test_input_that_was_deleted_after_a_death_is_given_up_with_the_reason(medium: Medium) -> None:
    medium.insert(1)
    medium.open().read(100, alone=True)
    medium.run("DELETE FROM orders")
    medium.now += 2 * LEASE
    assert read(medium.open()) == []
    assert medium.run("SELECT key, state, reason FROM kstreams_claims") == [(1, 3, "its row was deleted")]


def test_text_keys_are_read_unchanged(medium: Medium) -> None:
    medium.run("CREATE TABLE codes (code TEXT NOT NULL UNIQUE, value INTEGER)")
    medium.run("INSERT INTO codes VALUES ('00123', 1), ('123', 2), ('é', 3)")
    connection = medium.open(table="codes", key="code")
    claims = connection.read(100, alone=True)
    assert [(claim.key, claim.value["value"]) for claim in claims] == [
        (b"'00123'", 1),
        (b"'123'", 2),
        ("'é'".encode(), 3),
    ]
    connection.ack(claims)
    medium.now += 2 * LEASE
    assert read(medium.open(table="codes", key="code")) == []


def test_columns_limits_what_functions_get(medium: Medium) -> None:
    medium.insert(1)
    (claim,) = medium.open(columns=["item"]).read(100, alone=True)
    assert claim.value == {"item": "item 1"}


REFUSED: dict[str, tuple[str, Callable[[Medium], object]]] = {
    "no file": (
        "there is no file '/nowhere.db': correct the path of the source",
        lambda _: sources.SQLite("/nowhere.db", table="orders", key="id").open(READER),
    ),
    "no table": (
        "has no table 'order': correct the table of the source",
        lambda medium: medium.open(table="order"),
    ),
    "no column": (
        "has no column 'idd': did you mean id?",
        lambda medium: medium.open(key="idd"),
    ),
    "no key": (
        "column 'item' does not identify a row: name a column that is the primary key, or NOT NULL and UNIQUE",
        lambda medium: medium.open(key="item"),
    ),
    "a key that may be null": (
        "column 'code' does not identify a row",
        lambda medium: (medium.run("CREATE TABLE c (code TEXT PRIMARY KEY)"), medium.open(table="c", key="code")),
    ),
    "claims of another version": (
        "table kstreams_claims is of another version of kstreams_py (its columns are reader, state, a): read it",
        lambda medium: (medium.run("CREATE TABLE kstreams_claims (reader TEXT, state INT, a INT)"), medium.open()),
    ),
    "a lease": ("lease=0: give seconds above 0", lambda medium: medium.open(lease=0)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_source_that_cannot_be_read_as_declared_is_refused_with_the_remedy(medium: Medium, case: str) -> None:
    told, declare = REFUSED[case]
    with pytest.raises(SettingsError) as refused:
        declare(medium)
    assert told in str(refused.value)


def test_locked_file_is_away_and_read_again_once_it_is_free(medium: Medium, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstreams_py.sinks.sqlite.BUSY_SECONDS", 0.05)
    medium.insert(1)
    connection = medium.open()
    with closing(sqlite3.connect(medium.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SourceUnavailable, match=r"shop\.db: database is locked: end the program") as locked:
            connection.read(100, alone=True)
        assert locked.value.may_return
        other.execute("ROLLBACK")
    assert read(connection) == [1]


def test_claims_of_a_read_that_failed_are_read_again(medium: Medium, monkeypatch: pytest.MonkeyPatch) -> None:
    medium.insert(1, 2)
    connection = medium.open()
    (first,) = connection.read(1, alone=True)
    # its answer is lost: nobody knows of the claim
    monkeypatch.setattr(sqlite.SQLiteReader, "_claim", raise_lost)
    with pytest.raises(SourceUnavailable):
        connection.read(1, alone=True)
    monkeypatch.undo()
    monkeypatch.setattr(sqlite, "read_clock", lambda: medium.now)
    connection.ack([first])
    assert read(connection) == [2]


def raise_lost(*_: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")
