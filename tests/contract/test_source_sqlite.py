"""A table in SQLite as a source: what only it has."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from kstreams_py import sources
from kstreams_py.errors import SettingsError, SourceUnavailable
from kstreams_py.sinks.sqlite import transaction
from kstreams_py.sources import claims, passes, sqlite
from kstreams_py.sources.suspects import DEATHS_MAX
from tests.contract.source_media import LEASE, READER, InSQLite
from tests.contract.test_sources import read, read_attempts


@pytest.fixture
def medium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InSQLite]:
    with closing(InSQLite(tmp_path, monkeypatch)) as found:
        yield found


def test_row_that_changes_after_its_acknowledgement_is_not_read_again(medium: InSQLite) -> None:
    medium.insert(1)
    connection = medium.open()
    connection.ack(connection.read(1, alone=True))
    medium.run("UPDATE orders SET item = 'changed'")
    medium.wait(2 * LEASE)
    assert read(medium.open()) == []


def test_file_that_is_made_anew_under_the_same_name_is_another_one(medium: InSQLite, tmp_path: Path) -> None:
    first, again, copied = medium.open(), medium.open(), tmp_path / "copied.db"
    medium.run(f"VACUUM INTO '{copied}'")
    other = sources.SQLite(copied, table="orders", key="id").open(READER)
    for suffix in ("", "-wal", "-shm"):
        medium.path.with_name(f"shop.db{suffix}").unlink(missing_ok=True)
    medium.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    assert first.identity == again.identity == other.identity != medium.open().identity
    assert first.identity != medium.open("books.orders").identity
    other.close()


def test_claims_from_before_a_restart_of_the_machine_are_taken_over_at_once(medium: InSQLite) -> None:
    medium.insert(1)
    medium.open().read(100, alone=True)
    medium.now = 1.0  # the clock begins again
    assert read_attempts(medium.open()) == [(1, 1)]


def test_worker_that_renews_while_another_waits_for_the_file_keeps_its_claims(
    medium: InSQLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    medium.insert(1, 2)
    living, other = medium.open(), medium.open()
    living.read(100, alone=True)

    def waiting(connection: sqlite3.Connection) -> AbstractContextManager[None]:
        medium.wait(LEASE * 0.9)
        living.keep()
        return transaction(connection)

    monkeypatch.setattr(claims, "transaction", waiting)
    assert (read(other), read(medium.open())) == ([], [])


def test_large_table_is_looked_through_in_parts(medium: InSQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOOKED_AT", 10)
    monkeypatch.setattr(passes, "LOOK_SECONDS", -1.0)
    medium.insert(*range(0, 100, 2))
    connection = medium.open()
    assert [read(connection) for _ in range(6)] == [[*range(at, at + 20, 2)] for at in range(0, 100, 20)] + [[]]
    medium.insert(31, 100)
    # a row beyond the end does not wait for the pass, nor the pass for it
    assert [each for _ in range(8) for each in read(connection)] == [100, 31]


def test_text_keys_are_read_unchanged(medium: InSQLite) -> None:
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
    medium.wait(2 * LEASE)
    assert read(medium.open(table="codes", key="code")) == []


def test_row_whose_key_is_not_text_is_refused_and_the_others_are_read(medium: InSQLite) -> None:
    medium.run("CREATE TABLE codes (code TEXT NOT NULL UNIQUE, value INTEGER)")
    medium.run("INSERT INTO codes VALUES ('a', 1), (CAST(x'61ff' AS TEXT), 2), (CAST(x'ff61' AS TEXT), 3), ('b', 4)")
    for number in range(2):  # in passes that begin after such keys, too
        connection = medium.open(table="codes", key="code")
        found = [claim.value["value"] for _ in range(4) for claim in connection.read(1, alone=True)]
        assert (found, connection.refused) == (([1, 4], 2) if not number else ([], 0))
        connection.ack([])
    source = sources.SQLite(medium.path, table="codes", key="code")
    assert (source.inspect(READER, 10).refused, source.retry(READER, None)) == (2, 0)


def test_keys_that_only_their_index_tells_apart_are_different_rows(medium: InSQLite) -> None:
    medium.run("CREATE TABLE codes (code TEXT NOT NULL COLLATE NOCASE, value INTEGER)")
    medium.run("CREATE UNIQUE INDEX one ON codes (code COLLATE BINARY)")
    medium.run("INSERT INTO codes VALUES ('a', 1), ('A', 2), ('b', 3)")
    for _ in range(2):
        connection = medium.open(table="codes", key="code")
        claims = connection.read(100, alone=True)
        assert sorted((claim.key, claim.value["value"]) for claim in claims) == [(b"'A'", 2), (b"'a'", 1), (b"'b'", 3)]
        connection.give_back(claims, failed=False)


def test_columns_limits_what_functions_get(medium: InSQLite) -> None:
    medium.insert(1)
    (claim,) = medium.open(columns=["item"]).read(100, alone=True)
    assert claim.value == {"item": "item 1"}


REFUSED: dict[str, tuple[str, Callable[[InSQLite], object]]] = {
    "no file": (
        "there is no file '/nowhere.db': correct the path of the source",
        lambda _: sources.SQLite("/nowhere.db", table="orders", key="id").open(READER),
    ),
    "no table": ("has no table 'order': correct the table of the source", lambda medium: medium.open(table="order")),
    "no column": ("has no column 'idd': did you mean id?", lambda medium: medium.open(key="idd")),
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
def test_source_that_cannot_be_read_as_declared_is_refused_with_the_remedy(medium: InSQLite, case: str) -> None:
    told, declare = REFUSED[case]
    with pytest.raises(SettingsError) as refused:
        declare(medium)
    assert told in str(refused.value)


def test_locked_file_is_away_and_read_again_once_it_is_free(medium: InSQLite, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_claims_of_a_read_that_failed_are_read_again(medium: InSQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    medium.insert(1, 2)
    connection = medium.open()
    (first,) = connection.read(1, alone=True)
    # its answer is lost: nobody knows of the claim
    monkeypatch.setattr(claims, "claim_of", raise_lost)
    with pytest.raises(SourceUnavailable):
        connection.read(1, alone=True)
    monkeypatch.undo()
    medium.set_clocks(monkeypatch)
    connection.ack([first])
    assert connection.read(0, alone=False) == [], "who asks for none does not look at what it gets"
    assert read(connection) == [2]


def test_suspects_whose_claim_had_no_answer_are_read_again_by_themselves(medium: InSQLite) -> None:
    medium.insert(1, 2, 3)
    for _ in range(DEATHS_MAX - 1):
        medium.open().read(100, alone=True)
        medium.wait(2 * LEASE)
    connection = medium.open()
    with pytest.MonkeyPatch.context() as lost:
        lost.setattr(claims, "claim_of", raise_lost)
        with pytest.raises(SourceUnavailable):
            connection.read(100, alone=True)
    assert (read(connection), connection.waits_alone) == ([1], True)


def raise_lost(*_: object, **__: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")
