"""`kstreams dead-letters` on a cluster in memory: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kstreams_py as ks
from kstreams_py.cli import dead_letters, options
from kstreams_py.errors import SettingsError, UserMistake
from kstreams_py.operations.dead_letters.replay import ReplayOutcome, Summary
from tests.unit.test_operations import Shop, declare_map


class Unclosed:
    """A cluster in memory that a command may close."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def close(self) -> None:
        """The test goes on with it."""


class Terminal:
    """Runs the command on a shop with three letters; one of them, of order c, fails again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shop = Shop(declare_map)
        for second, value in enumerate("abc"):
            self.shop.fail(value, timestamp=1_600_000_000_000 + second * 1000)
        self.shop.mend()
        call = self.shop.call

        def picky(value: Any, step: Any) -> None:
            call(value, step)
            if value == b"c":
                raise ValueError("no price")

        monkeypatch.setattr(self.shop, "call", picky)
        monkeypatch.setattr(options, "load", lambda _: self.shop.graph)
        monkeypatch.setattr(options, "KafkaCluster", lambda _: Unclosed(self.shop.cluster))
        monkeypatch.setattr(options, "open_registry", lambda *_: self.shop.registry)

    def run(self, verb: str, *options: str) -> Result:
        return CliRunner().invoke(dead_letters.app, [verb, "shop.py", *options])

    @property
    def places(self) -> list[str]:
        return [str(letter.place) for letter in self.shop.letters()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(monkeypatch)


def test_replay_prints_the_letters_that_stay_and_the_counts_and_ends_with_status_1(terminal: Terminal) -> None:
    *_, place = terminal.places
    digest = terminal.shop.letters()[2].delivery_hash.hex()
    done = terminal.run("replay")
    assert (done.exit_code, done.stdout.splitlines()) == (
        1,
        [
            f"{place}  shop.price  failed again: ValueError: no price (reading orders[0]@2, delivery {digest})",
            "2 replayed, 1 failed again",
        ],
    )
    assert [value for value, _ in terminal.shop.outputs("priced")] == [b"A", b"B"]


def test_replay_of_chosen_letters_ends_with_status_0_and_a_second_one_finds_none(terminal: Terminal) -> None:
    offset = terminal.shop.letters()[1].place.offset
    found = [terminal.run("replay", "--partition", "0", "--offset", str(offset)) for _ in range(2)]
    assert [(each.exit_code, each.stdout) for each in found] == [
        (0, "1 replayed\n"),
        (0, "no dead letters to replay\n"),
    ]


def test_dry_run_prints_what_would_be_replayed_and_runs_nothing(terminal: Terminal) -> None:
    done = terminal.run("replay", "--dry-run", "--since", "2020-09-13T12:26:41Z")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [f"{place}  shop.price  would be replayed (KeyError: 'price')" for place in terminal.places[1:]]
        + ["2 would be replayed"],
    )
    assert terminal.shop.calls == []


def test_dry_run_says_which_letters_cannot_be_replayed_and_ends_with_status_1(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = Summary({ReplayOutcome.REPLAYED: 2, ReplayOutcome.FAILED: 0, ReplayOutcome.STAYS: 4}, discarded=1)
    monkeypatch.setattr(dead_letters, "plan_replay", lambda *_, **__: summary)
    done = terminal.run("replay", "--dry-run")
    assert (done.exit_code, done.stdout) == (1, "2 would be replayed, 4 cannot be replayed; 1 discarded are left out\n")


def test_replay_that_a_function_stops_says_where_and_ends_with_status_1(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise ks.Stop

    monkeypatch.setattr(terminal.shop, "call", stop)
    done = terminal.run("replay")
    assert (done.exit_code, done.stdout.splitlines()) == (
        1,
        [f"stopped at {terminal.places[0]}: its function raised Stop", "nothing was replayed"],
    )


def test_list_counts_letters_as_a_table_and_as_json(terminal: Terminal) -> None:
    terminal.run("replay")
    table, line = terminal.run("list"), terminal.run("list", "--json", "--error", "KeyError", "--processor", "price")
    assert table.stdout.splitlines() == [
        "processor   error     waiting  replayed  discarded  first                 last",
        "shop.price  KeyError        1         2          0  2020-09-13T12:26:40Z  2020-09-13T12:26:42Z",
        f"    {terminal.places[2]}: 'price'",
    ]
    found = json.loads(line.stdout)
    assert (found["waiting"], found["replayed"], found["letter"]["offset"]) == (
        1,
        2,
        terminal.shop.letters()[2].place.offset,
    )
    empty = terminal.run("list", "--error", "ValueError")
    assert (empty.exit_code, empty.stdout) == (0, "no dead letters\n")


def test_show_prints_the_newest_that_wait_and_replayed_ones_if_asked(terminal: Terminal) -> None:
    terminal.run("replay")

    def shown(*options: str) -> list[tuple[str, bool]]:
        lines = map(json.loads, terminal.run("show", "--json", *options).stdout.splitlines())
        return [(each["inputs"][0]["value"], each["replayed"]) for each in lines]

    assert shown() == [("c", False)]
    assert shown("--replayed") == [("a", True), ("b", True), ("c", False)]
    assert shown("--replayed", "-n", "2") == [("b", True), ("c", False)]
    first = str(terminal.shop.letters()[0].place.offset)
    assert shown("--partition", "0", "--offset", first) == [("a", True)]
    text = terminal.run("show").stdout.splitlines()
    assert text[:2] == [f"{terminal.places[2]}  shop.price  2020-09-13T12:26:42Z", "  error      KeyError: 'price'"]
    assert terminal.run("show", "--error", "ValueError").stdout == "no dead letters\n"


def test_records_that_are_no_dead_letters_are_named_on_stderr(terminal: Terminal) -> None:
    terminal.shop.cluster.append("dead", None)
    for verb in (["list"], ["show"], ["replay"], ["discard", "--reason", "a test", "--yes"]):
        assert "is a tombstone, not a dead letter\n" in terminal.run(*verb).stderr


WHY = ("--reason", " a test of ours ")


def test_discard_marks_with_a_reason_that_list_and_show_print_and_replay_leaves_out(terminal: Terminal) -> None:
    planned = terminal.run("discard", *WHY, "--dry-run", "--since", "2020-09-13T12:26:41Z")
    assert planned.stdout.splitlines() == [
        *(f"{place}  shop.price  would be discarded (KeyError: 'price')" for place in terminal.places[1:]),
        "2 would be discarded",
    ]
    last = ("--partition", "0", "--offset", str(terminal.shop.letters()[2].place.offset))
    found = [terminal.run("discard", *WHY, *last, "--yes") for _ in range(2)]
    assert [(each.exit_code, each.stdout) for each in found] == [
        (0, "1 discarded\n"),
        (0, "no dead letters to discard\n"),
    ]
    assert terminal.run("list", "--waiting").stdout.splitlines()[1:] == [
        "shop.price  KeyError        2         0          1  2020-09-13T12:26:40Z  2020-09-13T12:26:42Z",
        f"    {terminal.places[1]}: 'price'",
        "    1 discarded: a test of ours",
    ]
    assert json.loads(terminal.run("list", "--json").stdout)["reasons"] == {"a test of ours": 1}
    for also, shown in (((), 2), (("--replayed",), 2), (("--discarded",), 3)):
        lines = [json.loads(line) for line in terminal.run("show", "--json", *also).stdout.splitlines()]
        assert [(each["discarded"] or {}).get("reason") for each in lines] == [None, None, "a test of ours"][:shown]
    replayed = terminal.run("replay")
    assert (replayed.exit_code, replayed.stdout) == (0, "2 replayed; 1 discarded are left out\n")
    assert terminal.run("list", "--waiting").stdout == "no dead letters wait\n"
    taken = terminal.run("replay", "--discarded", "--dry-run")
    assert taken.stdout.splitlines()[-1] == "1 would be replayed"


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_discard_asks_first_and_changes_nothing_if_the_answer_is_no(terminal: Terminal, answer: str) -> None:
    done = CliRunner().invoke(dead_letters.app, ["discard", "shop.py", *WHY], input=answer)
    assert (done.exit_code, len(terminal.shop.waiting())) == (1, 3)
    *shown, asked, last = done.stdout.splitlines()
    assert shown == [f"{place}  shop.price  would be discarded (KeyError: 'price')" for place in terminal.places[:3]], (
        shown
    )
    assert asked.startswith("discard 3 dead letters? [y/N]: ")
    assert last == "nothing was discarded"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            " \n",
            "--reason is empty: write why nobody needs these dead letters, as `kstreams dead-letters list` shows it",
        ),
        ("x" * 501, "--reason has 501 characters, and 500 is the limit: write where the rest can be read"),
    ],
)
def test_discard_without_a_reason_that_fits_is_refused(terminal: Terminal, reason: str, message: str) -> None:
    refused = terminal.run("discard", "--reason", reason, "--yes").exception
    assert (type(refused), str(refused)) == (SettingsError, message)
    assert terminal.run("discard", "--yes").exit_code == 2
    assert len(terminal.shop.waiting()) == 3


@pytest.mark.parametrize("verb", ["list", "show", "replay", "discard"])
def test_mistakes_are_raised_before_anything_is_done(terminal: Terminal, verb: str) -> None:
    why = WHY if verb == "discard" else ()
    unknown = terminal.run(verb, *why, "--processor", "prize").exception
    assert isinstance(unknown, UserMistake)
    assert str(unknown) == "graph 'shop' has no processor 'prize': it has price"
    assert isinstance(terminal.run(verb, *why, "--since", "soon").exception, SettingsError)
    if verb != "list":
        alone = terminal.run(verb, *why, "--offset", "3").exception
        assert str(alone) == "--offset names a dead letter together with its partition: add --partition"
    assert (terminal.shop.calls, len(terminal.shop.waiting())) == ([], 3)
