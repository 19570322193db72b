"""Lines and rows of files as a source: what only they have."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from kstreams_py.errors import MissingSoftware, SettingsError, SourceUnavailable
from kstreams_py.graph.source import BadInput, Claim, NamingConnection, SourceConnection
from kstreams_py.sources import files, records
from tests.contract.dying_process import DyingConnection, Life
from tests.contract.source_media import LEASE, InFiles

NUMBER: Final = (1 << files.ROW_BITS) - 1


@pytest.fixture
def medium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InFiles]:
    monkeypatch.setattr(files, "MARKED_ROWS", 2)
    with closing(InFiles(tmp_path, monkeypatch)) as found:
        yield found


class Begins(str):
    """Equals each text that begins with it: a message of another library."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.startswith(self)


def rows_of(claims: Iterable[Claim]) -> list[tuple[int, Any]]:
    """Returns numbers and values; of what is unreadable, the reason without the place."""
    rows = list[tuple[int, Any]]()
    for key, value, *_ in claims:
        assert isinstance(key, int)
        if isinstance(value, BadInput):
            place, _, reason = str(value.error).partition(": ")
            assert place.endswith(f" {key & NUMBER}")
            rows.append((key & NUMBER, reason))
        else:
            rows.append((key & NUMBER, value))
    return rows


def read_rows(connection: SourceConnection, limit: int = 100) -> list[tuple[int, Any]]:
    """Claims all that is there, and returns its numbers and values."""
    return rows_of(chain.from_iterable(iter(lambda: connection.read(limit, alone=True), [])))


def take(connection: SourceConnection, count: int) -> list[Claim]:
    """Returns claims of several reads: rows of Parquet come in batches."""
    claims = list[Claim]()
    while len(claims) < count:
        claims += connection.read(count - len(claims), alone=True)
    return claims


def parquet_of(*tables: pa.Table, row_group_size: int | None = None) -> bytes:
    """Returns a file with the rows of tables, each in row groups of its own."""
    written = io.BytesIO()
    with parquet.ParquetWriter(written, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table, row_group_size)
    return written.getvalue()


NUMBERS = [pa.table({"id": [*range(at, at + 2_500)], "tags": [["a"]] * 2_500}) for at in (0, 2_500)]
PACKED = gzip.compress(b"[1]\n[2]\n")
NANOSECONDS = pa.struct([("b", pa.list_(pa.time64("ns")))])
DAYS = pa.table({"day": pa.array([0, 2**30], pa.date32())})
NO_ROW = "it has {}, and the header of its file has 2"

READ: dict[str, tuple[str, bytes, list[tuple[int, Any]]]] = {
    "any JSON": (".jsonl", b'{"a": [1]}\nnull\n"x"\n\n \t\n7\r\n', [(1, {"a": [1]}), (2, None), (3, "x"), (6, 7)]),
    "a BOM, no newline at the end": (".jsonl", b"\xef\xbb\xbf[1]\n[2]", [(1, [1]), (2, [2])]),
    "no JSON": (
        ".jsonl",
        b'{"a": 1\n1 2\n"\0"\n"\xe9"\n' + b"[" * 19 + b"\n" + b"9" * 20 + b"\n" + b"9" * 21 + b'\n"ok"\n',
        [
            (1, "it is not JSON: Expecting ',' delimiter at column 1"),
            (2, "it is not JSON: Extra data at column 3"),
            (3, "it is not JSON: Invalid control character at column 2"),
            (4, "\udce9"),
            (5, "it is not JSON: Expecting value at column 1"),
            (6, int("9" * 20)),
            (7, "it is longer than 16 MB"),
            (8, "ok"),
        ],
    ),
    "numbers that JSON does not have, or no float": (
        ".jsonl",
        b"[-Infinity]\n1e400\n",
        [
            (1, "it is not readable JSON: -Infinity is not a JSON number"),
            (2, "it is not readable JSON: no float is near to 1e400"),
        ],
    ),
    "CSV": (
        ".csv",
        b'a,b\r\n1,"x, ""y"""\r\n\r\n2,"two\nlines\r\n"\n5",\xe9\n"",',
        [
            (2, {"a": "1", "b": 'x, "y"'}),
            (4, {"a": "2", "b": "two\nlines\r\n"}),
            (7, {"a": '5"', "b": "\udce9"}),
            (8, {"a": "", "b": ""}),
        ],
    ),
    "no CSV": (
        ".csv",
        b'a,b\n1\n1,2,3\n1,"2",3\n\0,1\n"\0",1\n1\r2,3\n"1"2,3\n1,2\n' + b"1," * 11 + b"\n3,4\n",
        [
            (2, NO_ROW.format("1 field")),
            (3, NO_ROW.format("3 fields")),
            (4, NO_ROW.format("3 fields")),
            (5, "it has NUL bytes: the file is damaged, or not text in UTF-8"),
            (6, "it has NUL bytes: the file is damaged, or not text in UTF-8"),
            (7, "it is not CSV: it has a carriage return outside of quotes"),
            (8, "it is not CSV: ',' expected after '\"'"),
            (9, {"a": "1", "b": "2"}),
            (10, "it is longer than 16 MB"),
            (11, {"a": "3", "b": "4"}),
        ],
    ),
    "a quote without an end": (
        ".csv",
        b'a,b\n1,"2\n3,4\n5,6',
        [(2, "it is not CSV: unexpected end of data"), (3, {"a": "3", "b": "4"}), (4, {"a": "5", "b": "6"})],
    ),
    "a quote without an end before one with": (
        ".csv",
        b'a,b\n1,"2\n3,"4"\n5,6\n',
        [(2, "it is not CSV: ',' expected after '\"'"), (3, {"a": "3", "b": "4"}), (4, {"a": "5", "b": "6"})],
    ),
    "a quote that ends too late": (
        ".csv",
        b'a,b\n1,"2\n3,4\n3,4\n3,4\n3,4\n"\n',
        [
            (2, "it is longer than 16 MB"),
            *((at, {"a": "3", "b": "4"}) for at in range(3, 7)),
            (7, "it is not CSV: unexpected end of data"),
        ],
    ),
    "a quote before a line that is too long": (
        ".csv",
        b'a,b\n1,"2\n' + b"1," * 11 + b"\n3,4\n",
        [(2, "it is longer than 16 MB"), (3, "it is longer than 16 MB"), (4, {"a": "3", "b": "4"})],
    ),
    "a header with a name twice": (".csv", b"a,a\n1,2\n", [(2, "the header of its file names 'a' twice")]),
    "a header that is no CSV": (
        ".csv",
        b'"a"b\n1\n',
        [(at, "the header of its file cannot be read: it is not CSV: ',' expected after '\"'") for at in (1, 2)],
    ),
    "lines that end with carriage returns": (
        ".csv",
        b"a,b\r1,2\r",
        [(1, "the header of its file cannot be read: it is not CSV: it has a carriage return outside of quotes")],
    ),
    "a header of lines": (".csv", b'\n"a\nb",c\n1,2\n', [(4, {"a\nb": "1", "c": "2"})]),
    "only a header": (".csv", b"a,b", []),
    "nothing": (".jsonl", b"", []),
    "packed": (
        ".csv.gz",
        gzip.compress(b'\xef\xbb\xbfa\n1\n"2\n"\n') + gzip.compress(b"3"),
        [(2, {"a": "1"}), (3, {"a": "2\n"}), (5, {"a": "3"})],
    ),
    "packed, cut": (
        ".jsonl.gz",
        PACKED[:-4],
        [(1, [1]), (2, [2]), (3, Begins("it cannot be decompressed from here on: Compressed file ended before"))],
    ),
    "packed, damaged": (
        ".jsonl.gz",
        PACKED[:-8] + bytes(8),
        [(1, [1]), (2, [2]), (3, Begins("it cannot be decompressed from here on: CRC check failed"))],
    ),
    "not packed": (".jsonl.gz", b"[1]\n", [(1, Begins("it cannot be decompressed from here on: Not a gzipped"))]),
    "Parquet": (
        ".parquet",
        parquet_of(*NUMBERS, row_group_size=2_000),
        [(at + 1, {"id": at, "tags": ["a"]}) for at in range(5_000)],
    ),
    "Parquet without rows": (".parquet", parquet_of(NUMBERS[0].slice(0, 0)), []),
    "Parquet with a day in the year 2941743": (
        ".parquet",
        parquet_of(DAYS),
        [(1, {"day": datetime.date(1970, 1, 1)}), (2, Begins("it has a value that Python cannot represent: "))],
    ),
    "Parquet with nanoseconds": (
        ".parquet",
        parquet_of(pa.table({"a": pa.array([{"b": [1_000]}, {"b": [1]}], NANOSECONDS)})),
        [
            (1, {"a": {"b": [datetime.time(0, 0, 0, 1)]}}),
            (2, Begins("it has a value that Python cannot represent: Casting ")),
        ],
    ),
    "Parquet with times beyond their day": (
        ".parquet",
        parquet_of(pa.table({"a": pa.array([1, 86_400_000_005, 2, -1]).view(pa.time64("us"))})),
        [
            (1, {"a": datetime.time(0, 0, 0, 1)}),
            (2, Begins("it has a value that Python cannot represent: In column 0: Invalid: time64[us] 86400000005 is")),
            (3, {"a": datetime.time(0, 0, 0, 2)}),
            (4, Begins("it has a value that Python cannot represent: In column 0: Invalid: time64[us] -1 is not")),
        ],
    ),
    "Parquet with views of nanoseconds": (
        ".parquet",
        parquet_of(pa.table({"a": pa.array([[1_000], [1]], pa.list_view(pa.timestamp("ns")))})),
        [(at, Begins("its column 'a' has the type list_view<element: timestamp[ns]>, whose")) for at in (1, 2)],
    ),
    "Parquet with texts and lists that share their bytes": (
        ".parquet",
        parquet_of(
            pa.table(
                {
                    "a": pa.array(["x" * 30, "y"] * 2, pa.string_view()),
                    "b": pa.array([["x" * 30]] * 4, pa.list_view(pa.string())),
                    "c": pa.array(["x" * 30, "y"] * 2).dictionary_encode(),
                }
            )
        ),
        [(at, {"a": text, "b": ["x" * 30], "c": text}) for at, text in enumerate(["x" * 30, "y"] * 2, 1)],
    ),
    "Parquet with a name twice": (
        ".parquet",
        parquet_of(pa.table([[1, 2], [3, 4]], names=["a", "a"])),
        [(1, "its file has the column 'a' twice"), (2, "its file has the column 'a' twice")],
    ),
    "no Parquet": (".parquet", b"PAR1", [(1, Begins("its file is not a readable Parquet file: "))]),
}


@pytest.mark.parametrize("limit", [1, 3, 10_000])
@pytest.mark.parametrize("case", READ)
def test_each_record_is_an_input_and_the_same_one_when_it_is_read_again(
    medium: InFiles, monkeypatch: pytest.MonkeyPatch, case: str, limit: int
) -> None:
    suffix, content, expected = READ[case]
    if len(expected) < 100:  # else a read would have one row
        monkeypatch.setattr(records, "RECORD_MAX", 21)
        monkeypatch.setattr(records, "READ_BYTES", 20)
        monkeypatch.setattr(files, "READ_BYTES", 20)
    (medium.directory / f"file{suffix}").write_bytes(content)
    options: dict[str, Any] = {"paths": medium.directory / "file*", "format": suffix.split(".")[1], "ends": True}
    connection = medium.open(**options)
    assert read_rows(connection, limit if len(expected) < 100 else 400 * limit) == expected
    medium.wait(2 * LEASE)
    again = medium.open(**options)
    assert isinstance(again, NamingConnection)
    claims = again.read(10_000, alone=True)
    places = [f"{medium.directory / f'file{suffix}'}:{number}" for number, _ in expected]
    assert (rows_of(claims), [again.name_of(each) for each in claims]) == (expected, places)
    assert not expected or not again.is_exhausted


GROWING: dict[str, list[tuple[bytes, list[tuple[int, Any]]]]] = {
    ".jsonl": [(b"[1]\n[", [(1, [1])]), (b"2", []), (b"]\n\n", [(2, [2])]), (b"[4]\n", [(4, [4])])],
    ".csv": [
        (b"a,b", []),
        (b"\n1,2", []),
        (b'\n3,"4\n5\n', [(2, {"a": "1", "b": "2"})]),
        (b"6", []),
        (b'"\n', [(3, {"a": "3", "b": "4\n5\n6"})]),
    ],
    ".jsonl.gz": [(PACKED[:-4], [(1, [1]), (2, [2])]), (PACKED[-4:], []), (PACKED, [(3, [1]), (4, [2])])],
    ".parquet": [(b"", []), (parquet_of(DAYS.slice(0, 1)), [(1, {"day": datetime.date(1970, 1, 1)})])],
}


@pytest.mark.parametrize("suffix", GROWING)
def test_file_that_grows_is_read_up_to_the_last_record_with_an_end(
    medium: InFiles, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    path = medium.directory / f"file{suffix}"
    options: dict[str, Any] = {"paths": f"{path}*", "format": suffix.split(".")[1]}
    connection = medium.open(**options)
    assert caplog.messages == [f"{path}*: no file matches yet"]
    caplog.clear()
    for appended, expected in GROWING[suffix]:
        with path.open("ab") as file:
            file.write(appended)
        assert read_rows(connection) == expected
        medium.wait(1)
    waits = {
        ".jsonl": "",
        ".csv": f"{path}: waits for the quote that ends a field of the row at line 3",
        ".jsonl.gz": f"{path}: waits for what follows: Compressed file ended before the end-of-stream "
        "marker was reached",
        ".parquet": f"{path}: waits for what makes it a Parquet file: Parquet file size is 0 bytes",
    }
    assert caplog.messages == [waits[suffix]] * bool(waits[suffix])
    medium.wait(2 * LEASE)
    again = chain.from_iterable(expected for _, expected in GROWING[suffix])
    assert read_rows(medium.open(**options)) == [*again]


LINES: Final = b"".join(b"[%d]\n" % number for number in range(2_000))


def cut(path: Path) -> None:
    os.truncate(path, 5_000)


def change_first(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"[9]")


def change_last(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5_500)
        file.write(b"9")


def rewrite_and_grow(path: Path) -> None:
    path.write_bytes(LINES.replace(b"7", b"8") + LINES)


def replace(path: Path, content: bytes = LINES[:-7] + b"[1]\n") -> None:
    path.with_name("new").write_bytes(content)
    path.with_name("new").replace(path)


BYTES: Final = "some of its first {} bytes are different"
CHANGES: dict[str, tuple[str, bytes, Callable[[Path], object], str | None]] = {
    "cut": (".jsonl", LINES, cut, "it has 5000 bytes, of which 5890 were read"),
    "others first": (".jsonl", LINES, change_first, BYTES.format(5_890)),
    "others last": (".jsonl", LINES, change_last, BYTES.format(5_890)),
    "rewritten": (".jsonl", LINES, rewrite_and_grow, BYTES.format(5_890)),
    "replaced": (".jsonl", LINES, partial(replace, content=LINES[1:]), BYTES.format(5_890)),
    "replaced, packed": (
        ".jsonl.gz",
        gzip.compress(LINES),
        partial(replace, content=gzip.compress(LINES[1:])),
        BYTES.format(len(gzip.compress(LINES))),
    ),
    "replaced, Parquet": (
        ".parquet",
        parquet_of(NUMBERS[0]),
        partial(replace, content=parquet_of(NUMBERS[1])),
        BYTES.format(len(parquet_of(NUMBERS[0]))),
    ),
    "replaced by its copy": (".jsonl", LINES, partial(replace, content=LINES), None),
    "replaced by its longer copy": (".jsonl", LINES, partial(replace, content=LINES + b"[1]\n"), None),
    "touched": (".jsonl", LINES, Path.touch, None),
}


@pytest.mark.parametrize("when", ["while it is read", "before a start", "before its claims are read again"])
@pytest.mark.parametrize("case", CHANGES)
def test_file_that_changes_otherwise_ends_the_job_and_is_never_mixed(medium: InFiles, case: str, when: str) -> None:
    suffix, content, change, expected = CHANGES[case]
    path = medium.directory / f"file{suffix}"
    path.write_bytes(content)
    options: dict[str, Any] = {"paths": path, "format": suffix.split(".")[1]}
    connection = medium.open(**options)
    connection.ack(take(connection, 500))
    claimed = rows_of(take(connection, 500))
    change(path)
    if when != "while it is read":
        medium.wait(2 * LEASE if when == "before its claims are read again" else 0)
        connection = medium.open(**options)
    if expected is None:
        first = claimed if when == "before its claims are read again" else []
        assert read_rows(connection, 10_000) == first + [(at, [at - 1]) for at in range(1_001, 2_001)] + [
            (2_001, [1])
        ] * ("longer" in case)
        return
    for _ in range(2):
        with pytest.raises(SettingsError) as refused:
            connection.read(100, alone=True)
        medium.wait(LEASE if when == "before its claims are read again" else 0)
        remedy = "restore its content, or remove it and give the new content another name"
        assert str(refused.value) == f"{path} has changed since it was read: {expected}: {remedy}"
    path.write_bytes(content)
    medium.wait(2 * LEASE)
    numbers = {number for number, _ in claimed + read_rows(medium.open(**options), 10_000)}
    assert numbers == {*range(501, 1 + max(numbers))}
    assert len(numbers) >= 1_500


ENDS: Final = [(b'a\n"\n1\n2', b"3"), (b"a\n0\n2", b"\n"), (b'a\n"\n1\n', b'"\n')]


@pytest.mark.parametrize(("content", "appended"), ENDS)
def test_end_that_mattered_may_not_move_once_it_was_read(medium: InFiles, content: bytes, appended: bytes) -> None:
    path = medium.directory / "file.csv"
    path.write_bytes(content)
    options: dict[str, Any] = {"paths": path, "format": "csv", "ends": True}
    connection = medium.open(**options)
    connection.ack(connection.read(1, alone=True))
    medium.open(**options).read(1, alone=True)
    with path.open("ab") as file:
        file.write(appended)
    with pytest.raises(SettingsError, match=f"it was read to its end at byte {len(content)}, inside a record, and has"):
        medium.open(**options).read(100, alone=True)


class Died(BaseException):
    """The process has died: no statement after this runs."""


def die() -> None:
    raise Died


def work(medium: InFiles, read_keys: list[int | bytes], acknowledged: list[int | bytes], **options: Any) -> None:
    """Runs a worker until nothing is left: it refuses what is unreadable, and gives one input back."""
    connection = medium.open(ends=True, lease=LEASE, **options)
    while not connection.is_exhausted:
        claims = connection.read(2, alone=True)
        medium.wait(0 if claims else LEASE / 2)
        assert acknowledged == [*dict.fromkeys(acknowledged)], "nothing is acknowledged twice"
        assert not {claim.key for claim in claims} & {*acknowledged}
        read_keys += [claim.key for claim in claims]
        bad = [(claim, str(claim.value.error)) for claim in claims if isinstance(claim.value, BadInput)]
        good = [claim for claim in claims if not isinstance(claim.value, BadInput)]
        connection.refuse(bad)
        acknowledged += [claim.key for claim, _ in bad]
        connection.ack(good)
        acknowledged += [claim.key for claim in good]


def test_worker_that_dies_at_any_statement_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MARKED_ROWS", 2)
    connect = partial(sqlite3.connect, factory=DyingConnection)
    monkeypatch.setattr("kstreams_py.sinks.sqlite.sqlite3.connect", connect)
    wholes, died = set[tuple[Any, ...]](), 0
    for dies_at in range(1, 10_000):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        medium = InFiles(directory, monkeypatch)
        medium.insert(1, 2, 3, 4, 5)
        (directory / "000002.jsonl").write_bytes(b"[6]\n]\n[7]")
        read_keys, acknowledged = list[int | bytes](), list[int | bytes]()
        DyingConnection.life = life = Life(dies_at, die)
        try:
            work(medium, read_keys, acknowledged)
        except Died:
            died += 1
            medium.close()
            medium.wait(2 * LEASE)
        DyingConnection.life = Life(None)
        if len(life.points) >= dies_at:
            work(medium, read_keys, acknowledged)
        assert {*read_keys} == {1 << 40 | line for line in range(1, 6)} | {2 << 40 | line for line in range(1, 4)}
        asked = "SELECT file, rows, offset, size, hex(print), final FROM kstreams_files ORDER BY file"
        claimed = medium.run("SELECT key, state, substr(reason, -40) FROM kstreams_claims")
        wholes.add((*medium.run(asked), *claimed))
        medium.close()
        shutil.rmtree(directory)
        if len(life.points) < dies_at:
            break
    assert (died, len(wholes)) == (dies_at - 1, 1), wholes
    ((first, second, refused),) = wholes
    assert (first[:4], second[:4]) == ((1, 5, 140, 140), (2, 3, 9, 9))
    assert refused == (2 << 40 | 2, 3, "2: it is not JSON: Expecting value at column 1"[-40:])
    assert died > 200


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_workers_share_one_file_and_each_record_is_read_once(medium: InFiles, suffix: str) -> None:
    lines = {".jsonl": LINES, ".jsonl.gz": gzip.compress(LINES), ".parquet": parquet_of(*NUMBERS, row_group_size=700)}
    path = medium.directory / f"file{suffix}"
    path.write_bytes(lines[suffix])
    read_keys: dict[int, list[int | bytes]] = {0: [], 1: []}
    both = threading.Barrier(2, timeout=60)

    def share(number: int) -> None:
        connection = medium.open(paths=path, format=suffix.split(".")[1], ends=True)
        while not connection.is_exhausted:
            claims = connection.read(37, alone=True)
            values = [claim.value["id"] if suffix == ".parquet" else claim.value[0] for claim in claims]
            assert values == [NUMBER & int(claim.key) - 1 for claim in claims]
            if claims and not read_keys[number]:
                both.wait()
            read_keys[number] += [claim.key for claim in claims]
            connection.ack(claims)

    threads = [threading.Thread(target=share, args=(number,)) for number in read_keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = 5_000 if suffix == ".parquet" else 2_000
    assert sorted(read_keys[0] + read_keys[1], key=int) == [1 << 40 | at for at in range(1, count + 1)]
    assert medium.run("SELECT * FROM kstreams_claims") == []


def test_packed_file_is_skipped_in_parts_up_to_where_others_claimed(
    medium: InFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOOK_SECONDS", -1.0)
    path = medium.directory / "file.gz"
    path.write_bytes(gzip.compress(LINES * 2))
    options: dict[str, Any] = {"paths": path, "ends": True}
    first, second = medium.open(**options), medium.open(**options)
    first.ack(first.read(3_000, alone=True))
    taken = [(len(second.read(800, alone=True)), second.is_exhausted) for _ in range(5)]
    assert taken == [(0, False), (0, False), (800, False), (200, False), (0, False)]


def test_files_are_read_in_the_order_of_their_names_and_each_once(medium: InFiles) -> None:
    for name in ("b/2", "b/1", "a/3", "a/[x]", "b/2 not"):
        (medium.directory / name).parent.mkdir(exist_ok=True)
        (medium.directory / f"{name}.jsonl").write_text(json.dumps(name) + "\n")
    (medium.directory / "c.jsonl").mkdir()
    at = str(medium.directory)
    paths = [f"{at}/b/?.jsonl", f"{at}/a/[x].jsonl", f"{at}//a/*l", f"{at}/**/[1-3].jsonl", f"{at}/*.jsonl"]
    connection = medium.open(paths=paths)
    assert [claim.value for claim in connection.read(3, alone=True)] == ["a/3", "a/[x]", "b/1"]
    assert [claim.value for claim in connection.read(3, alone=True)] == ["b/2"]
    (medium.directory / "a" / "0.jsonl").write_text('"a/0"\n')
    assert [claim.value for claim in connection.read(3, alone=True)] == ["a/0"]
    again = medium.open("books.orders", paths=paths[0])
    assert [claim.value for claim in again.read(3, alone=True)] == ["b/1", "b/2"]


def test_record_is_found_again_from_a_mark_near_it(medium: InFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[tuple[int, int | None]]()

    class Spied(records.JsonRecords):
        def __init__(self, path: str, start: records.FilePosition, end: int | None, *, is_complete: bool) -> None:
            opened.append((start.rows, end))
            super().__init__(path, start, end, is_complete=is_complete)

    monkeypatch.setattr(files, "JsonRecords", Spied)
    monkeypatch.setattr(files, "MARKED_ROWS", 100)
    (medium.directory / "file.jsonl").write_bytes(LINES)
    connection = medium.open()
    claims = [claim for _ in range(20) for claim in connection.read(100, alone=True)]
    connection.ack([claim for number, claim in enumerate(claims) if number not in (50, 999, 1_000, 1_999)])
    connection.close()
    medium.wait(2 * LEASE)
    assert [claim.value for claim in medium.open().read(100, alone=True)] == [[50], [999], [1_000], [1_999]]
    assert opened == [(0, None), *((rows, len(LINES)) for rows in (0, 900, 1_000, 1_900)), (2_000, None)]


def test_dropped_claims_read_all_again_as_the_same_inputs(medium: InFiles) -> None:
    medium.insert(2, 4)
    medium.open().read(100, alone=True)
    medium.insert(1, 3, 5)
    running = medium.open()
    claims = running.read(1, alone=True), running.read(1, alone=True)
    medium.run("DROP TABLE kstreams_claims")
    assert medium.open().identity == running.identity != medium.open("books.orders").identity
    again = [(each.value["id"], each.key) for each in running.read(100, alone=True)]
    assert again == [
        *((at, 2 << 40 | line) for line, at in enumerate((1, 3, 5), 1)),
        (2, 1 << 40 | 1),
        (4, 1 << 40 | 2),
    ]
    assert again[:2] == [(each.value["id"], each.key) for (each,) in claims]


def test_files_that_are_away_are_waited_for(medium: InFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, path = medium.directory / "mounted", medium.directory / "mounted" / "file.jsonl"
    directory.mkdir()
    path.write_bytes(b"[1]\n[2]\n")
    options: dict[str, Any] = {"paths": directory / "*", "ends": True}
    medium.open(**options).read(1, alone=True)
    waiting = medium.open(**options)
    directory.rename(medium.directory / "away")
    with pytest.raises(SourceUnavailable, match=r"no file matches '.*/mounted/\*' any more: bring the files back"):
        waiting.read(1, alone=True)
    medium.wait(2 * LEASE)
    with pytest.raises(SourceUnavailable, match=r"file\.jsonl: its directory is not there: mount it; or make it,"):
        waiting.read(1, alone=True)
    (medium.directory / "away").rename(directory)
    for error, may_return in ((OSError(5, "Input/output error"), True), (PermissionError(13, "denied"), False)):
        with monkeypatch.context() as patch:
            patch.setattr("kstreams_py.sources.records._Lines.take", partial(raise_error, error))
            with pytest.raises(SourceUnavailable) as refused:
                waiting.read(100, alone=True)
        remedy = "check its disk" if may_return else "give this user the right to read it, then start again"
        assert (str(refused.value), refused.value.may_return) == (f"{path}: {error.strerror}: {remedy}", may_return)
    medium.wait(LEASE)
    assert rows_of(waiting.read(100, alone=True)) == [(1, [1]), (2, [2])]


def test_records_whose_claim_failed_are_read_again(medium: InFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstreams_py.sinks.sqlite.BUSY_SECONDS", 0.05)
    for name in ("a", "b"):
        (medium.directory / f"{name}.jsonl").write_bytes(b"[1]\n[2]\n")
    connection = medium.open(ends=True)
    with closing(sqlite3.connect(medium.directory / "claims.db", isolation_level=None)) as other:
        connection.read(1, alone=True)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            with pytest.raises(SourceUnavailable, match=r"claims\.db: database is locked: end the program"):
                connection.read(100, alone=True)
        other.execute("ROLLBACK")
    assert read_rows(connection) == [(2, [2]), (1, [1]), (2, [2])]


def raise_error(error: Exception, *_: object) -> None:
    raise error


REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "a format": (SettingsError, "format='josnl' is not a known format: did you mean jsonl?", {"format": "josnl"}),
    "another format": (SettingsError, "give one of csv, jsonl, parquet", {"format": "xml"}),
    "no claims": (SettingsError, "claims='': give the path of a SQLite file, which is created", {"claims": ""}),
    "claims in no directory": (SourceUnavailable, "make its directory", {"claims": "/nowhere/claims.db"}),
    "a lease": (SettingsError, "lease=0: give seconds above 0", {"lease": 0}),
    "a delimiter": (SettingsError, "delimiter='\"': give one character that is neither", {"delimiter": '"'}),
    "no path": (SettingsError, "a source of files has no path: give paths or patterns", {"paths": []}),
    "an empty path": (SettingsError, "a source of files has no path: give paths or patterns", {"paths": ["a", ""]}),
    "no file": (
        SettingsError,
        "no file matches '/nowhere/*.jsonl': correct it, or leave out ends=True to wait for one",
        {"paths": "/nowhere/*.jsonl", "ends": True},
    ),
    "a directory": (
        SettingsError,
        "'/' is a directory, or not a regular file: name files, or a pattern such as '/*.jsonl'",
        {"paths": "/"},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_source_that_cannot_be_read_as_declared_is_refused_with_the_remedy(medium: InFiles, case: str) -> None:
    kind, expected, options = REFUSED[case]
    with pytest.raises(kind) as refused:
        medium.open(**options)
    assert expected in str(refused.value)


def with_counts(content: bytes, counts: tuple[int, int]) -> bytes:
    """Returns a file of 7 rows whose end says that it has other numbers: in its row group, and in all."""
    size = int.from_bytes(content[-8:-4], "little")
    end, written = content[-8 - size : -8], []
    for number in (2 * count for count in counts):
        parts = [number >> shift & 127 | 128 for shift in range(0, max(number.bit_length() - 7, 0), 7)]
        written.append(bytes([*parts, number >> 7 * len(parts)]))
    at = [index for index, byte in enumerate(end) if byte == 14]
    for first, second in [(a, b) for a in at for b in at if a != b]:
        changed = {first: written[0], second: written[1]}
        made = b"".join(changed.get(index, end[index : index + 1]) for index in range(size))
        file = content[: -8 - size] + made + len(made).to_bytes(4, "little") + b"PAR1"
        with suppress(pa.ArrowException, OSError):
            found = parquet.ParquetFile(io.BytesIO(file)).metadata
            if (found.row_group(0).num_rows, found.num_rows) == counts:
                return file
    raise AssertionError("its end has no such numbers")


@pytest.mark.parametrize(("counts", "read"), [((10**9, 7), 1), ((10**9, 10**9), 8)])
def test_parquet_that_claims_rows_that_it_does_not_have_ends(
    medium: InFiles, counts: tuple[int, int], read: int
) -> None:
    path, options = medium.directory / "file.parquet", {"write_statistics": False, "store_schema": False}
    parquet.write_table(pa.table({"a": [*range(7)]}), path, compression="none", **options)
    path.write_bytes(with_counts(path.read_bytes(), counts))
    connection = medium.open(paths=medium.directory / "file.parquet", format="parquet", ends=True)
    found = read_rows(connection, 50)
    assert len(found) == read
    assert [value for _, value in found if isinstance(value, dict)] == [{"a": at} for at in range(7)] * (read > 1)
    assert connection.read(50, alone=True) == []
    medium.wait(2 * LEASE)
    assert (
        rows_of(medium.open(paths=medium.directory / "file.parquet", format="parquet", ends=True).read(100, alone=True))
        == found
    )


def test_rows_of_parquet_that_are_read_together_are_few_if_they_are_large(
    medium: InFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "READ_BYTES", 300_000)
    (medium.directory / "file.parquet").write_bytes(parquet_of(pa.table({"a": ["x" * 100_000] * 200})))
    connection = medium.open(paths=medium.directory / "file.parquet", format="parquet")
    sizes = [[claim.size // 1_000 for claim in connection.read(500, alone=True)] for _ in range(2)]
    assert sizes == [[100] * 2] * 2


def test_claims_that_match_the_files_are_refused(medium: InFiles) -> None:
    with pytest.raises(SettingsError, match=r"/claims\.db' has the claims, and matches '.*/\*': keep them elsewhere"):
        medium.open(paths=medium.directory / "*").read(1, alone=True)


def test_parquet_without_pyarrow_is_refused_with_the_extra(medium: InFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingSoftware, match=r"pip install 'kstreams_py\[parquet\]'"):
        medium.open(format="parquet")
