"""The tools of `kstreams demo channels`: expected rows, each check that can fail, a worker that is frozen."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_py import sources
from kstreams_py.demo import channels
from kstreams_py.demo.channel_checks import RunFaults, StoredRow, TablesFound, describe, judge, rate
from kstreams_py.demo.channel_tables import DemoTables
from kstreams_py.demo.channels_graph import COLUMNS, SOURCE, TARGET
from kstreams_py.demo.recoveries import Kill
from kstreams_py.demo.traffic import Freeze
from kstreams_py.errors import SettingsError
from kstreams_py.graph.sink import Row
from kstreams_py.sinks import SQLite
from tests.departures import row

STORM = "2013-01-30T21:00:00Z"
DAY = [
    row(1, origin="JFK", time_hour=STORM, arr_delay=15),
    row(2, origin="LGA", arr_delay=14),
    row(3, arr_delay=None),
    row(4, origin="EWR", time_hour="1999-01-01T00:00:00Z", dep_time=None, arr_delay=None),
]
EXPECTED = rate(DAY)
FAULTS = RunFaults(killed=2, frozen=1)


def found() -> TablesFound:
    """The tables of a perfect run."""
    return TablesFound(EXPECTED.rows, EXPECTED.refused, 3, 4, Counter({2: 2, 3: 1}), 5)


def test_expected_rows_are_those_of_the_functions_called_one_after_the_other() -> None:
    assert EXPECTED.rows == Counter(
        [
            (1, "UA 1", STORM, "late", 3),
            (2, "UA 2", "2013-01-01T10:00:00Z", "on time", 0),
            (4, "UA 4", "1999-01-01T00:00:00Z", "cancelled", -1),
        ]
    )
    assert EXPECTED.refused == {3: "parse: ValueError: DL 3 departed, but has no arrival delay"}


SPOILED: dict[str, tuple[Callable[[TablesFound], TablesFound], set[str]]] = {
    "nothing": (lambda f: f, set()),
    "a lost row": (lambda f: replace(f, rows=f.rows - Counter([min(f.rows)])), {"rows stored", "rows lost"}),
    "a doubled row": (lambda f: replace(f, rows=f.rows + Counter([min(f.rows)])), {"rows stored", "rows doubled"}),
    "an altered row": (
        lambda f: replace(f, rows=f.rows - Counter([min(f.rows)]) + Counter([(1,)])),
        {"rows lost", "rows altered"},
    ),
    "an input that is left": (lambda f: replace(f, done=2), {"inputs done"}),
    "an input that nobody claimed": (lambda f: replace(f, claimed=3), {"inputs claimed"}),
    "another reason": (lambda f: replace(f, refused={3: "died"}), {"inputs refused for another reason"}),
}


@pytest.mark.parametrize("case", SPOILED)
def test_checks_detect_each_fault(case: str) -> None:
    spoil, wrong = SPOILED[case]
    assert {check.what for check in judge(EXPECTED, spoil(found()), FAULTS, FAULTS) if not check.ok} == wrong


def test_checks_detect_faults_that_did_not_happen() -> None:
    checks = judge(EXPECTED, found(), FAULTS, RunFaults(1, 0))
    assert {check.what for check in checks if not check.ok} == {"workers killed", "workers frozen past their lease"}


def test_results_say_what_was_read_again_and_what_the_hashes_have_kept_out() -> None:
    told = """\
4 flights were claimed from a table, and 3 rows stored in another. Workers were killed 2 times meanwhile, and 1 was \
frozen for longer than its lease.
2 flights were under way when that happened, and were read again; the unluckiest of them 2 times.
5 rows were written for the 3 that are stored: 2 of them were there already, and were recognized by their hash.
1 flights were refused, and stay in their table with the reason."""
    assert "\n".join(describe(found(), FAULTS)) == told


def test_tables_count_each_write_and_each_row_that_is_new(tmp_path: Path) -> None:
    tables = DemoTables(tmp_path)
    tables.create(DAY)
    target = SQLite(tables.target, table=TARGET.table, columns=COLUMNS).open("")
    for flights in ([1, 2], [2, 4]):
        target.write([Row(b"%d" % flight, (flight, "UA", STORM, "late", 0)) for flight in flights], {}, {})
    target.close()
    assert tables.count() == (4, 3)
    source = sources.SQLite(tables.source, table=SOURCE.table, key=SOURCE.key).open("weather:rows")
    claims = source.read(10, alone=True)
    assert [claim.value["arr_delay"] for claim in claims] == [15, 14, None, None]
    source.ack(claims[:2])
    source.refuse([(claims[2], "no")])
    source.close()
    rows = Counter[StoredRow]((flight, "UA", STORM, "late", 0) for flight in (1, 2, 4))
    assert tables.read() == TablesFound(rows, {3: "no"}, 2, 4, Counter(), 4)


def test_worker_is_frozen_once_in_the_middle_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = [0.0], list[tuple[int, int]]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append((pid, signum)))
    freeze = Freeze(3.0, 100, seed=1)
    assert (freeze.look(49, {0: 7}), freeze.look(50, {}), freeze.is_under_way) == (None, None, False)
    assert freeze.look(50, {0: 7}) == Kill(0.0, 0, 7)
    states = list[tuple[bool, bool]]()
    for now[0] in (2.9, 3.0, 4.4, 4.5):
        assert freeze.look(60, {0: 7, 1: 8}) is None
        states.append((freeze.is_under_way, freeze.has_thawed))
    assert states == [(True, False), (True, True), (True, True), (False, True)], "some time is left to it"
    assert sent == [(7, signal.SIGSTOP), (7, signal.SIGCONT)]


def test_frozen_worker_goes_on_when_the_run_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[int]()
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append(signum))
    freeze = Freeze(3.0, 100, seed=1)
    freeze.end()
    freeze.look(50, {0: 7})
    freeze.end()
    freeze.end()
    assert (sent, freeze.has_thawed) == ([signal.SIGSTOP, signal.SIGCONT], False)


def test_more_kills_than_the_rows_allow_are_refused_with_the_remedy(tmp_path: Path) -> None:
    told = (
        "4 kills in 300 rows could kill the workers of one row 5 times, and then it is refused: give at least 4,000 "
        "rows, or at most 3 kills"
    )
    with pytest.raises(SettingsError) as refused:
        channels.run(300, 4, 2, 1, tmp_path / "output")
    assert str(refused.value) == told
    assert not (tmp_path / "output").exists()
