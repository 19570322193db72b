"""bench/report.py: medians, ratios, targets, JSON, tables and a plot; bench/chaos.py: what its run counts."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from bench import plan, report
from bench.chaos import KEYS, KINDS, PARTITIONS, SLOTS, Arrivals, Fault, schedule
from bench.report import RATE, Results, Target

TARGETS = (
    Target("fast", "a: ours", RATE, at_least=0.75, of="a: peer"),
    Target("slow", "a: ours", RATE, at_least=4, of="a: other"),
    Target("late", "latency: ours", "p99 ms", at_most=80),
    Target("later", "latency: ours", "p99 ms", at_most=1, of="latency: peer"),
    Target("unknown", "chaos: ours", "lost", at_most=0),
    Target("missing peer", "a: ours", RATE, at_least=1, of="a: absent"),
)


@pytest.fixture
def results() -> Results:
    """Three rounds of rates, one of them disturbed; one round of latencies; one missing row."""
    found = Results(about={"rounds": 3})
    for ours, peer, other in ((300, 400, 100), (10, 350, 99), (310, 390, 101)):
        found.add("a: ours", {RATE: ours})
        found.add("a: peer", {RATE: peer})
        found.add("a: other", {RATE: other})
    found.add("latency: ours", {"median ms": 20, "p99 ms": 81})
    found.missing["a: absent"] = "it is not [installed]"
    return found


def test_median_of_the_rounds_ignores_one_disturbed_round(results: Results) -> None:
    assert [results.median(row, RATE) for row in ("a: ours", "a: peer", "a: absent")] == [300, 390, None]


def test_ratio_is_that_of_medians_and_none_without_both(results: Results) -> None:
    results.add("a: zero", {RATE: 0})
    rows = ("a: peer", "a: other", "a: absent", "a: zero")
    assert [results.ratio("a: ours", RATE, row) for row in rows] == [300 / 390, 3.0, None, None]


def test_verdicts_have_the_bound_the_value_and_whether_it_is_met(results: Results) -> None:
    found = [(v.target.name, v.target.asked, v.reached, v.met) for v in results.verdicts(TARGETS)]
    assert found == [
        ("fast", "≥ 0.75 x a: peer", 300 / 390, True),
        ("slow", "≥ 4 x a: other", 3.0, False),
        ("late", "≤ 80", 81, False),
        ("later", "≤ 1 x latency: peer", None, None),
        ("unknown", "≤ 0", None, None),
        ("missing peer", "≥ 1 x a: absent", None, None),
    ]


def test_target_is_met_at_its_bound() -> None:
    results = Results()
    results.add("a: ours", {RATE: 75, "p99 ms": 80})
    results.add("a: peer", {RATE: 100})
    targets = (TARGETS[0], Target("late", "a: ours", "p99 ms", at_most=80))
    assert [verdict.met for verdict in results.verdicts(targets)] == [True, True]


@pytest.mark.long  # it draws with matplotlib; in the quick tier, the tables
def test_json_has_each_round_and_target_and_the_plot_a_bar_for_each_row(results: Results, tmp_path: Path) -> None:
    results.add("a: ours", {"never plotted": 1})
    report.write(results, TARGETS[:3:2], tmp_path)
    text = (tmp_path / "results.svg").read_text(encoding="utf-8")
    assert text.rstrip().endswith("</svg>")
    shown = ("records/s", "a: ours", "a: peer", "a: other", "latency: ours", "median ms", "p99 ms", ">81<", ">300<")
    assert [each for each in (*shown, "never plotted", "longest silence s") if each in text] == list(shown)
    late = {"row": "latency: ours", "measure": "p99 ms", "asked": "≤ 80", "reached": 81, "met": False}
    fast = {"row": "a: ours", "measure": RATE, "asked": "≥ 0.75 x a: peer", "reached": 300 / 390, "met": True}
    never = {"never plotted": {"median": 1, "rounds": [1]}}
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == {
        "about": {"rounds": 3},
        "rows": {
            "a: ours": {RATE: {"median": 300, "rounds": [300, 10, 310]}, **never},
            "a: peer": {RATE: {"median": 390, "rounds": [400, 350, 390]}},
            "a: other": {RATE: {"median": 100, "rounds": [100, 99, 101]}},
            "latency: ours": {"median ms": {"median": 20, "rounds": [20]}, "p99 ms": {"median": 81, "rounds": [81]}},
        },
        "targets": [{"name": "fast", **fast}, {"name": "late", **late}],
        "missing": {"a: absent": "it is not [installed]"},
    }


def cells(text: str) -> list[list[str]]:
    """The cells of all lines of the tables and between them, without the heads."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in text.splitlines()
        if line.strip() and line[0] not in "┏┃┡└"
    ]


def test_tables_show_medians_ratios_and_missing_rows() -> None:
    results = Results(about={"rounds": 1})
    rates = {"pass-through: by hand": 500, "pass-through: kstreams_py": 400, "batch: kstreams_py": 600}
    for row, rate in rates.items():
        results.add(row, {RATE: rate * 1000})
    results.add("latency: kstreams_py", {"median ms": 12.34, "p99 ms": 5.678})
    results.missing["1 kB: quixstreams"] = "it is not [installed]"
    target = Target("batch", "batch: kstreams_py", RATE, at_least=1.25, of="pass-through: by hand")
    out = io.StringIO()
    report.show(results, [target, *TARGETS], Console(file=out, width=150, color_system=None))
    assert cells(out.getvalue()) == [
        ["records/s, medians of 1"],
        ["pass-through", "by hand", "500,000", "500,000 to 500,000", "", "1.00", "", ""],
        ["", "kstreams_py", "400,000", "400,000 to 400,000", "", "0.80", "", ""],
        ["batch", "kstreams_py", "600,000", "600,000 to 600,000", "", "1.20", "", ""],
        ["latency"],
        ["kstreams_py", "12.3", "5.68"],
        ["targets"],
        ["batch", "≥ 1.25 x pass-through: by hand", "1.20 x", "no"],
        ["not measured: 1 kB: quixstreams: it is not [installed]"],
    ]


def test_empty_results_make_no_table_and_no_plot(tmp_path: Path) -> None:
    out = io.StringIO()
    report.show(Results(), TARGETS, Console(file=out))
    assert out.getvalue() == ""
    assert [file.name for file in report.write(Results(), (), tmp_path)] == ["results.json"]
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_plan_runs_each_row_that_its_targets_name() -> None:
    entries = (*plan.ENTRIES, *plan.LATENCY_ENTRIES, plan.MEMORY_ENTRY, plan.RESTORE_ENTRY, *plan.CHAOS_ENTRIES)
    rows = {entry.id for entry in entries}
    assert len(rows) == len(entries)
    assert {entry.workload for entry in entries} == set(plan.WORKLOADS)
    assert not {row for target in plan.TARGETS for row in (target.row, target.of or target.row)} - rows
    beside = plan.beside_before(entries)
    assert [entry.program for entry in beside] == ["kstreams_py", "before"] * (len(beside) // 2)
    assert len({entry.id for entry in beside}) == len(beside)
    compared = {row for target in plan.TARGETS_BEFORE for row in (target.row, target.of)}
    assert not compared - {entry.id for entry in beside}


# The chaos run.


class Arrived:
    """A record that a reader receives."""

    def __init__(self, partition: int, key: int, number: int) -> None:
        self._partition = partition
        self._value = b"%d %d xxx" % (key, number)

    def partition(self) -> int:
        return self._partition

    def value(self) -> bytes:
        return self._value


def test_chaos_schedule_is_the_same_for_a_seed_and_has_every_kind() -> None:
    faults = schedule(45, 1)
    assert faults == schedule(45, 1) != schedule(45, 2)
    assert {fault.kind for fault in faults[:3]} == set(KINDS)
    assert all(0 <= fault.slot < SLOTS and 0 < fault.at < 45 for fault in faults)
    between = [later.at - earlier.at for earlier, later in pairwise(faults)]
    assert all(2 <= seconds <= 5 for seconds in between)


def test_chaos_counts_lost_duplicated_and_reordered_records() -> None:
    arrivals = Arrivals()
    arrivals.add([Arrived(0, 1, number) for number in (0, 2, 1, 2, 2)], 1.0)
    arrivals.add([Arrived(0, 2, number) for number in (0, 1)], 2.0)
    sent = {key: {1: 4, 2: 2, 3: 5}.get(key, 0) for key in range(KEYS)}
    assert arrivals.mistakes(sent) == {"lost": 6, "duplicated": 2, "out of order": 1}
    assert not arrivals.all_of(sent)
    assert arrivals.all_of({1: 5, 2: 2})


def test_chaos_silence_is_measured_per_partition_and_attributed_to_its_fault() -> None:
    arrivals = Arrivals()
    for partition in range(PARTITIONS):
        times = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0] if partition else [10.0, 11.0, 12.5, 13.0, 15.5, 16.0]
        for at in times:
            arrivals.add([Arrived(partition, 0, 0)], at)
    faults = [Fault(1.1, "kill", 0), Fault(3.1, "stop", 1), Fault(5.4, "kill", 2)]
    assert arrivals.figures(faults, 10.0, 16.25) == {
        "longest silence s": 2.5,
        "faults": 3.0,
        "after kill s": 1.5,
        "after stop s": 2.5,
    }


def test_chaos_silence_without_further_records_lasts_to_the_end() -> None:
    arrivals = Arrivals()
    for partition in range(1, PARTITIONS):
        arrivals.add([Arrived(partition, 0, 0)], 11.0)
    assert arrivals.figures([], 10.0, 17.0)["longest silence s"] == 7.0


def test_mistakes_are_reported_by_their_maximum_and_other_measures_by_their_median() -> None:
    results = Results()
    for lost, silence in ((0, 1.0), (3, 5.0), (0, 1.2)):
        results.add("chaos: ours", {"lost": lost, "longest silence s": silence})
    assert (results.median("chaos: ours", "lost"), results.median("chaos: ours", "longest silence s")) == (3, 1.2)
