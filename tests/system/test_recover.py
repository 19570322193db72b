"""`kstreams recover` on a real broker: what is moved is what the next run reads, and a refusal changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstreams_py.processing.tasks.choices import Choices, InputStart
from tests.system.command import Finished
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.operated import ALTS, JOIN, JOURNALED, MAP, Site


@pytest.fixture
def site(cluster: Cluster, name: str, tmp_path: Path) -> Callable[..., Site]:
    return lambda processor, *topics: Site(cluster, name, tmp_path, processor, *topics)


def digits(first: int, end: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, end)]


def test_reset_map_asks_first_and_the_next_run_reads_again_exactly_what_it_said(site: Callable[..., Site]) -> None:
    here = site(MAP, "in")
    here.write("in", *filter(None, digits(0, 10)))
    goal = ("--to-offset", f"{here.topic('in')}:0:4")
    with here.worker() as worker:
        wait_until(lambda: len(here.outputs) == 10, "the outputs")
        assert here.refused("reset", "work", *goal) == (
            f"UserMistake: the group has members: {here.group}.0 on 127.0.0.1: stop these workers; for workers "
            f"that have ended, run `kstreams slots release {here.file}:graph 0`: nothing was changed"
        )
        assert worker.process.poll() is None
    before = here.positions()
    (end,) = before[here.topic("in")].values()
    plan = (
        f"work: {here.topic('in')}[0]: {end} -> 4, at most 6 records are read again\n"
        f"work: outputs of records that are read again are written again to {here.topic('out')}, with the same "
        "delivery hashes: to who reads them they are new records\n"
    )
    assert here.reset(*goal, "--dry-run") == Finished(0, plan + "would be set; nothing was changed\n", "")
    assert here.positions() == before
    asked = here.reset(*goal, typed="n\n")
    assert (asked.status, asked.out) == (1, plan + "set these positions? [y/N]: nothing was changed\n")
    unanswered = here.reset(*goal)
    assert (unanswered.status, unanswered.out.endswith("nothing was changed\n")) == (1, True)
    assert here.positions() == before
    answered = here.reset(*goal, typed="y\n")
    assert (answered.status, answered.out) == (0, plan + "set these positions? [y/N]: set\n"), answered
    assert here.positions() == {here.topic("in"): {0: 4}}
    assert here.reset(*goal, "--yes") == Finished(0, "the positions are already set\n", "")
    assert here.run_until(16) == digits(0, 10) + digits(4, 10)
    hashes = [dict(m.headers())["ks-hash"] for m in here.cluster.read(here.topic("out"))]
    assert hashes[10:] == hashes[4:10]


def test_reset_of_a_journaled_map_writes_a_snapshot_where_the_next_run_goes_on(site: Callable[..., Site]) -> None:
    here = site(JOURNALED, "in")
    here.write("in", *filter(None, digits(0, 10)))
    here.run_until(10)
    ended = here.reset("--to-offset", f"{here.topic('in')}:0:7", "--yes", "--json")
    row = json.loads(ended.out)
    assert (row["new"], row["again"], row["moved"]) == (7, 3, True), ended
    assert here.run_until(13) == digits(0, 10) + digits(7, 10)


def test_status_says_where_a_stopped_and_a_running_map_go_on(site: Callable[..., Site]) -> None:
    here = site(MAP, "in")
    topic = here.topic("in")
    assert here.recover("status") == Finished(
        0, f"work[0]: committed none, held by no member\n  next start: begins at {topic}@0\n", ""
    )
    here.write("in", *filter(None, digits(0, 10)))
    with here.worker():
        wait_until(lambda: len(here.outputs) == 10, "the outputs")
        wait_until(lambda: here.positions()[topic].get(0, 0) == 10, "the committed offset")
        assert here.recover("status").out == (
            f"work[0]: committed {topic}@10, lag 0, held by {here.group}.0 on 127.0.0.1\n"
            f"  next start: goes on at {topic}@10\n"
        )
    here.write("in", b"10", b"11")
    (task,) = map(json.loads, here.recover("status", "--json").out.splitlines())
    assert (task["committed"], task["lag"], task["holder"]) == ({topic: 10}, 2, "")
    assert here.run_until(12) == digits(0, 12)


def test_status_of_a_map_whose_input_was_deleted_is_that_its_start_is_refused(site: Callable[..., Site]) -> None:
    here = site(MAP, "in")
    here.write("in", *filter(None, digits(0, 5)))
    here.run_until(5)
    (at,) = here.positions()[here.topic("in")].values()
    here.write("in", *filter(None, digits(5, 9)))
    here.cluster.delete_records(here.topic("in"))
    found = here.recover("status")
    assert (found.status, "ends with InputLost: " in found.out, f"its committed offset is {at}" in found.out) == (
        1, True, True,
    )  # fmt: skip
    worker = WorkerProcess(here.file, 0, here.environment)
    assert worker.wait() == 5, worker.text


def test_reset_of_an_alts_drops_its_journaled_choices(site: Callable[..., Site]) -> None:
    here = site(ALTS, "a", "b")
    here.write("a", b"a0", b"a1", b"a2")
    here.write("b", b"b0")
    here.run_until(4)
    positions = here.positions()
    (at,) = positions[here.topic("b")].values()
    waits = Choices(((here.topic("b"), at + 50),), (InputStart(here.topic("b"), here.topic_id("b"), at),))
    here.cluster.write(f"__ks.{here.name}.work.journal", [waits.encode()], headers=[("ks-type", b"alts-choices")])
    ended = here.reset("--to-offset", f"{here.topic('a')}:0:1", "--yes")
    assert ended.status == 0, ended
    # with those choices, no record of `a` would be read before 50 more of `b`
    assert here.run_until(6)[4:] == [b"a1", b"a2"]


@pytest.mark.long  # its positions are set as those of an alts, above
def test_reset_of_a_join_pairs_the_records_at_the_new_positions(site: Callable[..., Site]) -> None:
    here = site(JOIN, "a", "b")
    here.write("a", b"a0", b"a1", b"a2", b"a3")
    here.write("b", b"b0", b"b1", b"b2", b"b3")
    assert here.run_until(4) == [b"a0b0", b"a1b1", b"a2b2", b"a3b3"]
    goal = [f"{here.topic('a')}:0:1", f"{here.topic('b')}:0:2"]
    assert here.reset("--to-offset", goal[0], "--to-offset", goal[1], "--yes").status == 0
    assert here.run_until(6)[4:] == [b"a1b2", b"a2b3"]


def test_reset_to_time_beginning_and_end(site: Callable[..., Site], cluster: Cluster) -> None:
    here = site(MAP, "in")
    for second in (1_000, 2_000, 3_000):
        cluster.write(here.topic("in"), [b"%d" % second], timestamp=second * 1_000)

    def to(*option: str) -> int | None:
        (row,) = map(json.loads, here.reset(*option, "--dry-run", "--json").out.splitlines())
        assert row["moved"] is False
        return int(row["new"])

    assert to("--to-beginning") == 0
    assert to("--to-end") == 3
    assert to("--to-time", "1970-01-01T00:33:20+00:00") == 1
    assert to("--to-time", "1970-01-01T00:33:21+00:00") == 2
    assert to("--to-time", "1h") == 3


def test_reset_of_a_graph_that_never_ran_is_missed_if_it_expires(site: Callable[..., Site], cluster: Cluster) -> None:
    here = site(MAP, "in")
    here.write("in", b"0", b"1")
    assert here.reset("--to-end", "--yes").out == f"work: {here.topic('in')}[0]: no position -> 2, begins there\nset\n"
    cluster.delete_group(here.group)
    with WorkerRun(here) as (status, text):
        assert status == 5, text
        assert f"{here.topic('in')}[0] was read before, and its committed offset no longer exists" in text
        assert "kstreams recover reset" in text
    here.release()
    assert here.reset("--to-beginning", "--yes").status == 0
    assert here.run_until(2) == [b"0", b"1"]


class WorkerRun:
    """A worker that ends by itself: its exit status and its output."""

    def __init__(self, here: Site) -> None:
        self._worker = WorkerProcess(here.file, 0, here.environment)

    def __enter__(self) -> tuple[int, str]:
        status = self._worker.wait()
        return status, self._worker.text

    def __exit__(self, *_: object) -> None:
        self._worker.kill()


def test_reset_past_deleted_records_lets_a_graph_start_again(site: Callable[..., Site], cluster: Cluster) -> None:
    here = site(MAP, "in")
    here.write("in", b"0", b"1")
    here.run_until(2)
    here.write("in", b"2")
    cluster.delete_records(here.topic("in"))
    here.write("in", b"3")
    with WorkerRun(here) as (status, text):
        assert status == 5, text
    here.release()
    assert f"offset 0 is not in {here.topic('in')}[0]: choose one from 3 to 4" in here.refused(
        "reset", "work", "--to-offset", f"{here.topic('in')}:0:0"
    )
    assert here.reset("--to-beginning", "--yes").status == 0
    assert here.run_until(3) == [b"0", b"1", b"3"]


def test_mistakes_of_a_reset_are_one_message_each_and_change_nothing(site: Callable[..., Site]) -> None:
    here = site(MAP, "in")
    here.write("in", b"0", b"1")
    here.run_until(2)
    source = here.topic("in")
    one_of = "SettingsError: write one of --to-offset (any number of them), --to-time, --to-beginning and --to-end"
    (end,) = here.positions()[source].values()
    for arguments, message in {
        ("work",): one_of,
        ("work", "--to-end", "--to-beginning"): one_of,
        ("wrok", "--to-end"): f"UserMistake: graph {here.name!r} has no processor 'wrok': did you mean work?",
        (
            "work",
            "--to-offset",
            "x",
        ): "UserMistake: --to-offset 'x': write TOPIC:PARTITION:OFFSET, such as orders:0:120",
        ("work", "--to-offset", "other:0:1"): "UserMistake: processor 'work' does not read topic 'other': it reads "
        + source,
        ("work", "--to-offset", f"{source}:1:1"): f"UserMistake: topic {source!r} has no partition 1: it has 1, "
        "numbered from 0",
        ("work", "--to-offset", f"{source}:0:9"): f"UserMistake: offset 9 is not in {source}[0]: choose one from 0 to "
        f"{end}; {end} waits for new records",
        ("work", "--to-offset", f"{source}:0:1", "--to-offset", f"{source}:0:2"): f"UserMistake: --to-offset names "
        f"{source}[0] twice, with different offsets: write one of them",
        ("work", "--to-time", "soon"): "SettingsError: --to-time 'soon': write a number with s, m, h or d, such as 1h, "
        "or a time such as 2026-05-01T12:00",
        ("work", "--to-end", "--json"): "SettingsError: --json does not ask: add --yes or --dry-run",
    }.items():
        assert here.refused("reset", *arguments) == message


def test_export_is_restored_after_the_graph_went_on_and_other_files_are_refused(
    site: Callable[..., Site], cluster: Cluster, tmp_path: Path
) -> None:
    here = site(MAP, "in")
    here.write("in", b"0", b"1")
    with here.worker():
        wait_until(lambda: len(here.outputs) == 2, "the outputs")
        assert "UserMistake: the group has members" in here.refused("export")
    exported = here.recover("export")
    assert (exported.status, exported.err) == (0, "")
    file = tmp_path / "positions.json"
    file.write_text(exported.out, encoding="utf-8")
    saved = here.positions()
    (end,) = saved[here.topic("in")].values()
    assert json.loads(exported.out) == {
        "format": "kstreams_py positions 1",
        "graph": here.name,
        "topics": {here.topic("in"): here.topic_id("in")},
        "positions": {"work": [{"topic": here.topic("in"), "partition": 0, "offset": end}]},
    }
    here.write("in", b"2", b"3")
    assert here.run_until(4) == digits(0, 4)
    dry = here.recover("restore", file, "--dry-run")
    assert (dry.status, f"-> {end}, at most 2 records are read again" in dry.out) == (0, True), dry
    assert here.recover("restore", file, typed="n\n").status == 1
    assert here.positions() != saved
    assert here.recover("restore", file, "--yes").status == 0
    assert here.positions() == saved
    assert here.run_until(6) == digits(0, 4) + digits(2, 4)
    _refuse_files(here, json.loads(exported.out), file)
    cluster.delete(here.topic("in"))
    cluster.create(here.topic("in"))
    file.write_text(exported.out, encoding="utf-8")
    assert "was deleted and created again since" in here.refused("restore", file)


def _refuse_files(here: Site, content: dict[str, Any], file: Path) -> None:
    """Files that are not of this graph, or no files of an export, are refused with one message."""

    def refused(changed: dict[str, Any] | str) -> str:
        file.write_text(changed if isinstance(changed, str) else json.dumps(content | changed), encoding="utf-8")
        return here.refused("restore", file).removeprefix(f"UserMistake: {file}: ")

    no_file = "not a file of `kstreams recover export`: "
    row = content["positions"]["work"][0]
    assert refused("{").startswith(no_file)
    assert refused("[]") == f"{no_file}it has no 'kstreams_py positions 1' as its format"
    assert refused({"positions": 1}).startswith(no_file)
    assert refused({"positions": {"work": [row | {"offset": -1}]}}).startswith(no_file)
    assert refused({"positions": {"work": [row, row]}}) == f"{no_file}{here.topic('in')}[0] is listed twice"
    assert refused({"graph": "other"}) == f"it has positions of graph 'other': name that graph, not {here.name!r}"
    assert "has no processor 'x'" in refused({"positions": {"x": [row]}})
    assert "does not read topic 'y'" in refused({"positions": {"work": [row | {"topic": "y"}]}})
    assert "offset 99 is not in" in refused({"positions": {"work": [row | {"offset": 99}]}})
