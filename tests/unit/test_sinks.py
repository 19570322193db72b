"""sinks/: one row per delivery from any number of writers, and one exception when the file cannot be used."""

from __future__ import annotations

import gc
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kstreams_py.errors import RowRefused, SinkUnavailable
from kstreams_py.sinks import SqliteTable, sqlite


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SqliteTable]:
    table = SqliteTable(tmp_path / "flights.sqlite", "departed", ["carrier", "delay"])
    yield table
    table.close()


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_sink_rows_are_read_as_they_were_inserted(table: SqliteTable) -> None:
    assert table.insert([(digest(2), "UA", -3), (digest(1), None, 2.5)]) == 2
    assert table.rows() == [(digest(1), None, 2.5), (digest(2), "UA", -3)]


def test_sink_repeated_delivery_keeps_its_first_row(table: SqliteTable) -> None:
    table.insert([(digest(1), "UA", 1), (digest(2), "UA", 2)])
    assert table.insert([(digest(2), "XX", 9), (digest(3), "UA", 3), (digest(3), "XX", 9)]) == 1
    assert table.rows() == [(digest(1), "UA", 1), (digest(2), "UA", 2), (digest(3), "UA", 3)]


def test_sink_insert_of_no_rows_writes_nothing(table: SqliteTable) -> None:
    assert table.insert([]) == 0
    assert table.rows() == []


@pytest.mark.parametrize("row", [(digest(2), "UA"), (None, "UA", 1), (digest(2), "UA", 2**63)])
def test_sink_row_that_does_not_fit_is_refused_with_its_index_and_nothing_is_written(
    table: SqliteTable, row: tuple[object, ...]
) -> None:
    with pytest.raises(RowRefused) as raised:
        table.insert([(digest(1), "UA", 1), row])
    assert raised.value.index == 1
    assert table.rows() == []


def test_sink_names_are_quoted(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "names.sqlite", 'a "table"', ["group", "two words"])
    table.insert([(digest(1), 1, 2)])
    assert table.rows() == [(digest(1), 1, 2)]
    table.close()


def test_sink_is_opened_again_after_close(table: SqliteTable) -> None:
    table.insert([(digest(1), "UA", 1)])
    table.close()
    table.close()
    assert table.rows() == [(digest(1), "UA", 1)]


def test_sink_commit_is_synced_to_disk_and_readers_do_not_wait_for_writers(table: SqliteTable) -> None:
    with table._connected().usable() as connection:
        settings = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert settings == ["wal", 2]
        connection.execute("BEGIN IMMEDIATE")
        reader = sqlite3.connect(table.path, timeout=0)
        assert reader.execute("SELECT * FROM departed").fetchall() == []
        reader.close()
        connection.execute("ROLLBACK")


PROCESSES = """
import os, signal, sys
from pathlib import Path
from kstreams_py.sinks import SqliteTable

def digest(number):
    return number.to_bytes(16, "big")

def write(start):
    os.read(gate, 1)  # all processes open the file together
    table = SqliteTable(Path(sys.argv[1]), "departed", ["carrier", "delay"])
    for number in range(start, start + 40):
        table.insert([(digest(number), "UA", number), (digest(number + 1), "UA", number + 1)])
    table.close()

def die_during_insert(_):
    def rows():
        yield digest(102), "UA", 102
        os.kill(os.getpid(), signal.SIGKILL)

    SqliteTable(Path(sys.argv[1]), "departed", ["carrier", "delay"]).insert(rows())

def fork(function, argument):
    if pid := os.fork():
        return pid
    os.close(opened)
    function(argument)
    os._exit(0)

gate, opened = os.pipe()
writers = [fork(write, start) for start in (0, 20, 40, 60)]
os.close(opened)
print([os.waitpid(pid, 0)[1] for pid in writers])
gate, opened = os.pipe()
print(os.waitpid(fork(die_during_insert, None), 0)[1])
"""
"""Forks of one process, which has no threads, and imports the package once."""


def test_sink_processes_write_each_row_once_and_one_that_is_killed_none(tmp_path: Path) -> None:
    """Four open a new file together; one is killed in the middle of an insert: what was committed before is kept."""
    path = tmp_path / "shared.sqlite"
    done = subprocess.run([sys.executable, "-c", PROCESSES, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[0, 0, 0, 0]", str(int(signal.SIGKILL))]
    table = SqliteTable(path, "departed", ["carrier", "delay"])
    assert table.rows() == [(digest(number), "UA", number) for number in range(101)]
    assert table.insert([(digest(102), "UA", 102)]) == 1
    table.close()


def test_sink_on_a_full_disk_names_the_file_and_the_remedy_and_writes_nothing(table: SqliteTable) -> None:
    """SQLite's page limit stands for the disk: a write beyond it fails with SQLITE_FULL, as on a full disk."""
    table.insert([(digest(1), "UA", 1)])
    with table._connected().usable() as connection:
        connection.execute("PRAGMA max_page_count = 20")
    rows = [(digest(number), "x" * 200, number) for number in range(2, 1000)]
    with pytest.raises(SinkUnavailable) as raised:
        table.insert(rows)
    assert str(raised.value) == f"{table.path}: database or disk is full: free space on its disk, then start again"
    assert raised.value.exit_status == 3
    assert table.rows() == [(digest(1), "UA", 1)]
    with table._connected().usable() as connection:
        connection.execute("PRAGMA max_page_count = 1000")
    assert table.insert(rows) == 998, "the same connection inserts once there is space"


def test_sink_locked_by_another_connection_raises_with_the_remedy(
    table: SqliteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    table.insert([])
    other = sqlite3.connect(table.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkUnavailable) as raised:
        table.insert([(digest(1), "UA", 1)])
    assert str(raised.value) == (
        f"{table.path}: database is locked: end the program that has locked it for more than 5 s"
    )
    other.execute("ROLLBACK")
    other.close()
    assert table.insert([(digest(1), "UA", 1)]) == 1


def test_sink_in_a_missing_directory_raises_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "flights.sqlite"
    with pytest.raises(SinkUnavailable) as raised:
        SqliteTable(path, "departed", ["carrier"]).insert([(digest(1), "UA")])
    assert str(raised.value) == (
        f"{path}: unable to open database file: make its directory, with the right to write there, then start again"
    )


def test_sink_on_a_file_that_is_no_database_raises_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "flights.sqlite"
    path.write_text("carrier,delay\n" * 100)
    with pytest.raises(SinkUnavailable) as raised:
        SqliteTable(path, "departed", ["carrier"]).insert([(digest(1), "UA")])
    assert str(raised.value) == (
        f"{path}: file is not a database: move away what is there, or name another file, then start again"
    )


@pytest.mark.parametrize(
    ("existing", "problem"),
    [
        (
            "delivery_hash BLOB PRIMARY KEY, origin",
            (
                "has the columns (delivery_hash, origin), but the sink stores (delivery_hash, carrier): "
                "declare the columns of the table, or name another table"
            ),
        ),
        (
            "delivery_hash, carrier",
            (
                "cannot store the sink's rows: ON CONFLICT clause does not match any PRIMARY KEY or UNIQUE constraint: "
                "name another table"
            ),
        ),
    ],
)
def test_sink_on_a_table_with_other_columns_raises_with_the_remedy(tmp_path: Path, existing: str, problem: str) -> None:
    path = tmp_path / "flights.sqlite"
    other = sqlite3.connect(path)
    other.execute(f"CREATE TABLE departed ({existing})")
    other.close()
    table = SqliteTable(path, "departed", ["carrier"])
    with pytest.raises(SinkUnavailable) as raised:
        table.insert([(digest(1), "UA")])
    assert str(raised.value) == f"{path}: table departed {problem}, then start again"
    table.close()


def test_connection_is_closed_with_the_end_of_its_thread_or_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 warns of a connection that is not, and pytest makes an error of the warning."""
    closed: list[str] = []

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            closed.append(threading.current_thread().name)
            super().close()

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    table = SqliteTable(tmp_path / "flights.sqlite", "departed", ["carrier"])
    table.insert([(digest(1), "UA")])
    thread = threading.Thread(target=table.insert, args=([(digest(2), "UA")],), name="worker")
    thread.start()
    thread.join()
    gc.collect()
    assert len(closed) == 1
    assert table.rows() == [(digest(1), "UA"), (digest(2), "UA")]
    del table
    gc.collect()
    assert len(closed) == 2
