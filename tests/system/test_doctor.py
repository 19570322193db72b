"""`kstreams doctor` on a real broker: a healthy graph has no finding, and what a start refuses is found before it.

What is found on a broker that asks no coordinator: test_transactions.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.system.app import grow
from tests.system.command import Finished, kstreams
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.operated import JOURNALED, MAP, Site


def doctor(here: Site | str, *arguments: object, **environment: str) -> Finished:
    if isinstance(here, str):
        return kstreams("doctor", *arguments, environment={"KSTREAMS_BOOTSTRAP_SERVERS": here, **environment})
    return kstreams("doctor", f"{here.file}:graph", *arguments, environment={**here.environment, **environment})


def findings(here: Site | str, **environment: str) -> dict[tuple[str, str], str]:
    """The severity of each finding by its kind and its subject; the exit status fits them."""
    ended = doctor(here, "--json", **environment)
    rows: list[dict[str, Any]] = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.err == ""
    assert ended.status == (1 if {row["severity"] for row in rows} - {"note"} else 0)
    assert all(row["meaning"] and row["remedy"] for row in rows)
    return {(row["kind"], row["subject"]): row["severity"] for row in rows}


@pytest.fixture
def site(cluster: Cluster, name: str, tmp_path: Path) -> Callable[..., Site]:
    return lambda processor, *topics: Site(cluster, name, tmp_path, processor, *topics)


def test_healthy_graph_has_no_finding(site: Callable[..., Site]) -> None:
    here = site(JOURNALED.replace("id='work'", "id='work', errors=graph.name + '.errors'"), "in", "errors")
    here.write("in", b"0", b"1")
    with here.worker():
        wait_until(lambda: len(here.outputs) == 2, "the outputs")
        assert doctor(here) == Finished(0, "no problems found\n", "")
    ended = doctor(here)
    assert ended.status == 0
    assert ended.out == (
        f"note: {here.group}: it has no members: its positions are kept for 365 days after it has stopped\n"
        f"  start it before, or kstreams recover export {here.file}:graph > FILE\n"
    )


def test_positions_that_a_start_refuses_are_found_before_it(site: Callable[..., Site], cluster: Cluster) -> None:
    here = site(MAP, "in")
    here.write("in", b"0", b"1")
    here.run_until(2)
    here.write("in", b"2")
    cluster.delete_records(here.topic("in"))
    (end,) = here.positions()[here.topic("in")].values()
    source = here.topic("in")
    assert doctor(here).out.startswith(
        f"error: work: {source}[0]: its position is {end} and the log begins at {end + 1}: the next start ends with "
        f"InputLost\n  stop its workers, then kstreams recover reset {here.file}:graph work --to-offset "
        f"{source}:0:{end + 1}\n"
    )
    cluster.delete_group(here.group)
    assert findings(here) == {
        ("position_expired", f"work: {here.topic('in')}[0]"): "error",
        ("dropped", "work"): "note",
    }
    assert f"work --to-offset {source}:0:{end + 1} reads all that is kept" in doctor(here).out


COUNTING = """
@graph.map(topic("in"), to=topic("out"), id="work", state=ks.State("seen"))
def count(word, state):
    state.put("n", (state.get("n") or 0) + 1)
    return word
"""


def check_refused(here: Site, beginning: str, exit_status: int) -> str:
    """Status, doctor and run say the same of the next start, which ends with this error; returns what status shows."""
    status = here.recover("status")
    (plan,) = re.findall(r"next start(?: of each worker|:) (ends with .*)", status.out)
    assert plan.startswith(f"ends with {beginning}"), plan
    assert (status.status, status.err) == (1, "")
    (line,) = (line for line in doctor(here).out.splitlines() if line.startswith("error: "))
    assert line.endswith(f": the next start {plan}")
    worker = WorkerProcess(here.file, 0, here.environment)
    assert worker.wait() == exit_status, worker.text
    assert f"error: {plan.removeprefix('ends with ')}\n" in worker.text
    return status.out


def test_state_that_a_start_refuses_is_named_by_status_and_doctor_before_it(site: Callable[..., Site]) -> None:
    here = site(COUNTING, "in")
    here.write("in", b"0", b"1")
    here.run_until(2)
    assert here.recover("status").status == 0
    here.file.write_text(here.file.read_text(encoding="utf-8").replace('id="work"', 'id="total"'), encoding="utf-8")
    shown = check_refused(here, "InputLost: total: state 'seen' does not belong to the committed offsets: it is at ", 5)
    assert f"work: not declared, committed {here.topic('in')}[0]@" in shown
    assert findings(here) == {
        ("refused_start", "total[0]"): "error",
        ("undeclared", here.group): "note",
        ("dropped", "total"): "note",
    }
    at = here.cluster.committed(here.group, here.topic("in"))[0]
    forgotten = here.recover("forget", "work", typed="y\n")
    asked = "delete this group, with its positions? [y/N]: "
    assert (forgotten.status, forgotten.err) == (0, "")
    assert forgotten.out == (f"{here.group}: committed {here.topic('in')}[0]@{at}\n{asked}deleted {here.group}\n")
    assert here.cluster.committed(here.group, here.topic("in")) == {}
    assert "not declared" not in here.recover("status").out
    again = here.recover("forget", "work", "--yes")
    assert (again.status, len(again.error_lines)) == (2, 1), again
    grow(here.cluster, 6, here.topic("in"))
    check_refused(here, "TopicError: total: its inputs have 6 partitions, but its changelog ", 2)


def test_graph_that_does_not_exist_is_one_message(tmp_path: Path) -> None:
    ended = doctor("127.0.0.1:1", tmp_path / "none.py")
    assert (ended.status, ended.out, len(ended.error_lines)) == (2, "", 1), ended


STORING = "graph.map(graph.topics[graph.name + '.in'], to=topic('stored'), id='store')(lambda word: word)"


@pytest.mark.parametrize("slots", [("--workers", "2"), ("--slots", "0-1"), ("--slot", "0")])
def test_start_that_is_refused_doubles_no_output_of_another_processor(
    site: Callable[..., Site], slots: tuple[str, str]
) -> None:
    here = site(COUNTING + STORING, "in", "stored")
    here.write("in", b"0", b"1")
    stored = here.topic("stored")
    with here.worker():
        wait_until(lambda: len(here.outputs) == len(here.cluster.values(stored)) == 2, "the outputs")
    # of another size than before: Python takes bytecode for that of any source of the same second and size
    text = here.file.read_text(encoding="utf-8").replace("'store'", "'keep_all'").replace('"work"', '"total"')
    here.file.write_text(text, encoding="utf-8")
    ended = kstreams("run", f"{here.file}:graph", *slots, environment=here.environment)
    assert (ended.status, "InputLost: total: state 'seen' does not belong to" in ended.err) == (5, True), ended
    assert len(here.cluster.values(stored)) == 2
    assert here.cluster.committed(f"{here.name}.keep_all", here.topic("in")) == {}
