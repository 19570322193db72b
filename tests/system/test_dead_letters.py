"""`kstreams dead-letters` on a real broker: list, show, and a replay that is killed in the middle, again and again.

And a discard, with the counts of the dead letters that wait.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import Settings
from tests.system.command import Finished, RunningCommand, command, kstreams
from tests.system.harness import Cluster, wait_until
from tests.system.site import Site

MakeSettings = Callable[..., Settings]

GRAPH = """
import json
import os
import time
from pathlib import Path

import kstreams_py as ks

MENDED, BLOCKED = Path({mended!r}), Path({blocked!r})
called = 0
graph = ks.Graph({name!r}, errors="{name}.dead")
orders = graph.topic("{name}.in", value=ks.Json())
graph.topic("{name}.out", value=ks.Json())


@graph.map(orders, to=["{name}.out"])
def price(order):
    global called
    called += 1
    while BLOCKED.exists() and called > {calls}:
        BLOCKED.with_name(f"blocked-{{os.getpid()}}").touch()
        time.sleep(0.02)
    if not MENDED.exists():
        raise KeyError("unit_price")
    if "name" not in order:
        raise ValueError("an order without a name")
    time.sleep(0.01)
    return {{"number": order["number"]}}


@graph.sink(orders)
def count(order):
    pass
"""

ORDERS = 300
KILLS = 2

CALLS = 120
"""Steps that a replay runs before it blocks, to be killed: more than one transaction has, KILLS times not all."""


class Shop:
    """A graph in a file, whose workers have made dead letters."""

    def __init__(self, directory: Path, cluster: Cluster, settings: Settings, name: str) -> None:
        self.name, self.cluster, self.directory = name, cluster, directory
        self.environment = settings.as_environment()
        self.file = directory / "shop.py"
        self.mended = directory / "mended"
        self.blocked = directory / "blocked"
        self.file.write_text(GRAPH.format(name=name, mended=str(self.mended), blocked=str(self.blocked), calls=CALLS))
        cluster.create(f"{name}.in", f"{name}.dead", partitions=2)
        cluster.create(f"{name}.out")

    def run_until(self, letters: int) -> None:
        """Runs the workers until there are so many dead letters."""
        with command(self.directory, "run", self.file, "--slot", 0, environment=self.environment) as running:
            wait_until(lambda: len(self.cluster.values(f"{self.name}.dead")) == letters, f"{letters} dead letters")
            running.send(signal.SIGTERM)
            assert running.wait() == 0, running.text

    def dead_letters(self, verb: str, *options: object) -> Finished:
        return kstreams("dead-letters", verb, self.file, *options, environment=self.environment)

    def await_block(self, replay: RunningCommand) -> None:
        """Waits until a replay blocks: it has committed, and commits nothing more until it goes on."""
        wait_until(self.blocked.with_name(f"blocked-{replay.process.pid}").exists, "the replay blocks")

    def numbers(self) -> list[int]:
        """The committed outputs, in order."""
        return [json.loads(value or b"")["number"] for value in self.cluster.values(f"{self.name}.out")]


@pytest.fixture
def shop(tmp_path: Path, cluster: Cluster, settings: MakeSettings, name: str) -> Shop:
    return Shop(tmp_path, cluster, settings(), name)


def encode(content: Any) -> bytes:
    return json.dumps(content).encode()


def test_replay_that_is_killed_again_and_again_delivers_each_letter_once(shop: Shop) -> None:
    orders = [encode({"number": n, "name": f"order {n}"}) for n in range(ORDERS)]
    orders[7] = encode({"number": 7})
    shop.cluster.write(f"{shop.name}.in", orders, keys=[b"%d" % n for n in range(ORDERS)])
    shop.run_until(ORDERS)
    table = shop.dead_letters("list")
    assert (table.status, table.out.splitlines()[1].split()[:4]) == (0, [f"{shop.name}.price", "KeyError", "300", "0"])
    shop.mended.touch()
    (line,) = shop.dead_letters("show", "--json", "--error", "KeyError", "--partition", 0, "-n", 1).out.splitlines()
    shown = json.loads(line)
    (read,) = shown["inputs"]
    assert shown["message"] == "'unit_price'"
    assert orders[int(read["key"])] == encode(read["value"])
    planned = shop.dead_letters("replay", "--dry-run")
    assert (planned.status, planned.out.splitlines()[-1], shop.numbers()) == (0, "300 would be replayed", [])
    shop.blocked.touch()
    for _ in range(KILLS):
        before = len(shop.numbers())
        arguments = ("dead-letters", "replay", shop.file)
        with command(shop.directory, *arguments, environment=shop.environment) as running:
            wait_until(lambda: len(shop.numbers()) > before, "the replay has committed")  # noqa: B023
            running.send(signal.SIGKILL)
            running.wait()
    assert len(shop.numbers()) <= KILLS * CALLS
    shop.blocked.unlink()
    last = shop.dead_letters("replay")
    rest, *_, counts = last.out.splitlines()
    assert last.status == 1, last.err
    assert f"{shop.name}.price  failed again: ValueError: an order without a name" in rest
    assert counts.endswith("replayed, 1 failed again")
    assert sorted(shop.numbers()) == [n for n in range(ORDERS) if n != 7]
    (group,) = map(json.loads, shop.dead_letters("list", "--json").out.splitlines())
    assert (group["waiting"], group["replayed"], group["letter"]["topic"]) == (1, ORDERS - 1, f"{shop.name}.dead")
    again = shop.dead_letters("replay", "--partition", group["letter"]["partition"])
    assert (again.status, again.out.splitlines()[-1]) == (1, "1 failed again")
    assert len(shop.numbers()) == ORDERS - 1


def test_letters_wait_after_a_restart_until_they_are_discarded_or_replayed(shop: Shop) -> None:
    shop.cluster.write(f"{shop.name}.in", [encode({"number": n, "name": f"order {n}"}) for n in range(3)], partition=0)
    shop.run_until(3)
    arguments = ("run", shop.file, "--slot", 0, "--http", "127.0.0.1:0")
    with command(shop.directory, *arguments, environment=shop.environment) as running:
        site = Site(running)
        site.await_findings({("waiting", None): rf"^3 dead letters wait in {shop.name}\.dead$"})
        assert site.sums("dead_letters_waiting", "topic") == {(f"{shop.name}.dead",): 3}
        place = json.loads(shop.dead_letters("show", "--json").out.splitlines()[0])["letter"]
        first = ("--partition", place["partition"], "--offset", place["offset"])
        discarded = shop.dead_letters("discard", "--reason", "a test", *first, "--yes")
        assert (discarded.status, discarded.out) == (0, "1 discarded\n"), discarded.err
        assert "2 dead letters wait, the first of " in kstreams("doctor", shop.file, environment=shop.environment).out
        shop.mended.touch()
        assert shop.dead_letters("replay").out == "2 replayed; 1 discarded are left out\n"
        site.await_findings({})
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    (group,) = map(json.loads, shop.dead_letters("list", "--json").out.splitlines())
    assert (group["waiting"], group["replayed"], group["reasons"]) == (0, 2, {"a test": 1})
    assert len(shop.numbers()) == 2


@pytest.mark.long  # in the quick tier, test_operations.py has two replays
def test_second_replay_ends_the_first_with_status_4_and_nothing_is_doubled(shop: Shop) -> None:
    orders = [encode({"number": n, "name": f"order {n}"}) for n in range(ORDERS)]
    shop.cluster.write(f"{shop.name}.in", orders)
    shop.run_until(ORDERS)
    shop.mended.touch()
    shop.blocked.touch()
    arguments = ("dead-letters", "replay", shop.file)
    with command(shop.directory, *arguments, environment=shop.environment) as first:
        shop.await_block(first)
        with command(shop.directory, *arguments, environment=shop.environment) as second:
            shop.await_block(second)
            shop.blocked.unlink()
            assert first.wait() == 4, first.text
            assert f"another replay or discard of graph '{shop.name}' has begun" in first.text
            assert second.wait() == 0, second.text
    assert sorted(shop.numbers()) == list(range(ORDERS))


def test_mistakes_have_one_message_and_status_2(shop: Shop) -> None:
    for options, message in (
        (("--processor", "prize"), f"graph '{shop.name}' has no processor 'prize': it has count, price"),
        (("--since", "yesterday"), "--since 'yesterday': write a number with s, m, h or d, such as 1h, or a time such"),
        (("--offset", "3"), "--offset names a dead letter together with its partition: add --partition"),
        (("--partition", "0", "--offset", "3"), f"no dead letter of graph '{shop.name}' at partition 0, offset 3 fits"),
    ):
        done = shop.dead_letters("replay", *options)
        assert (done.status, done.out) == (2, "")
        (line,) = done.error_lines
        assert message in line
    empty = shop.dead_letters("replay")
    assert (empty.status, empty.out) == (0, "no dead letters to replay\n")
