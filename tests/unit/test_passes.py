"""When a worker looks where in a table for rows that nobody has claimed."""

from __future__ import annotations

import pytest

from kstreams_py.sources import passes
from kstreams_py.sources.passes import Look, Passes

PART = 10


class Table:
    """Rows by key. A look at ten of them takes a second."""

    def __init__(self, *, ends: bool = False) -> None:
        self.rows, self.claimed, self.now = set[int](), set[int](), 0.0
        self.passes = Passes(lambda: self.now, ends=ends)

    def look(self, after: int | None) -> Look:
        self.now += 1.0
        rest = sorted(each for each in self.rows if after is None or each > after)
        found = [each for each in rest[:PART] if each not in self.claimed]
        self.claimed.update(found)
        return Look(len(found), len(found), rest[:PART][-1] if rest else None, len(rest) <= PART)

    def find(self) -> list[int]:
        before = set(self.claimed)
        self.passes.find(self.look)
        return sorted(self.claimed - before)


def test_late_rows_are_found_in_the_next_pass_and_those_at_the_end_at_once() -> None:
    table = Table()
    table.rows.update(range(0, 60, 2))
    assert [table.find() for _ in range(3)] == [[*range(0, 20, 2)], [*range(20, 40, 2)], [*range(40, 60, 2)]]
    table.rows.update([1, 41, 60])
    assert [table.find() for _ in range(3)] == [[60], [], []]
    table.now = 10 * 3.0
    table.rows.add(61)
    # a pass begins; the end is looked at between its parts
    assert [table.find() for _ in range(5)] == [[1], [61], [], [41], []]
    table.rows.add(3)
    assert [table.find() for _ in range(10)] == [[]] * 10
    table.now += 100.0
    assert table.find() == [3]


def test_table_that_ends_is_looked_through_until_a_pass_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "LOOK_SECONDS", 100.0)
    table = Table(ends=True)
    table.rows.update(range(15))
    found = [(table.find(), table.passes.are_complete, table.now) for _ in range(4)]
    assert found == [([*range(10)], False, 1.0), ([*range(10, 15)], False, 2.0), ([], True, 4.0), ([], True, 4.0)]
