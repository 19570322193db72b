"""`kstreams doctor` on a real broker: a healthy graph has no finding, and each fault that is made is found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.kafka.administration import GroupAdmin
from tests.system.command import Finished, kstreams
from tests.system.hanging import Work, leave_hanging
from tests.system.harness import Cluster, wait_until
from tests.system.operated import JOIN, JOURNALED, MAP, Site

DAY_MS = 86_400_000


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
    here = site(JOURNALED, "in")
    here.write("in", b"0", b"1")
    with here.worker():
        wait_until(lambda: len(here.outputs) == 2, "the outputs")
        assert doctor(here) == Finished(0, "nothing was found\n", "")
    ended = doctor(here)
    assert ended.status == 0
    assert ended.out == (
        f"note: {here.group}: it has no members: its positions are kept for 365 days from its stop on\n"
        f"  start it before, or kstreams recover export {here.file}:graph > FILE\n"
    )


@pytest.fixture(scope="module")
def careless() -> Iterator[Cluster]:
    """A broker that keeps positions for a day, and accepts records of transactions without asking the coordinator."""
    settings = {
        "offsets.retention.minutes": "1440",
        "transaction.max.timeout.ms": "60000",
        "transaction.partition.verification.enable": "false",
    }
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=settings) as kafka:
        yield Cluster(kafka.bootstrap_servers)


def test_each_fault_that_is_made_is_found(careless: Cluster, name: str, tmp_path: Path) -> None:
    processors = "; ".join((JOURNALED, JOIN.replace("'work'", "'join'").replace("'out'", "'joined'")))
    here = Site(careless, name, tmp_path, processors)
    (source, other, journal) = here.topic("in"), f"{name}.join", f"__ks.{name}.work.journal"
    careless.create(source, config={"unclean.leader.election.enable": "true", "retention.ms": str(DAY_MS)})
    careless.create(here.topic("a"), config={"retention.bytes": "4000", "retention.ms": "-1"})
    careless.create(here.topic("b"), partitions=2)
    careless.create(journal, config={"cleanup.policy": "compact"})
    now = int(time.time() * 1000)
    careless.write(source, [b"old"], timestamp=now - 2 * DAY_MS)
    careless.write(source, [b"older than half"], timestamp=now - DAY_MS * 3 // 4)
    careless.write(here.topic("a"), [b"x" * 1_000] * 10)
    careless.set_committed(here.group, {(source, 0): 0})
    careless.set_committed(other, {(here.topic("a"), 0): 0, (here.topic("b"), 1): 7})
    member = ck.Consumer({"bootstrap.servers": careless.bootstrap_servers, "group.id": other})
    member.subscribe([here.topic("a")])

    def has_joined() -> bool:
        member.poll(0.05)
        return bool(member.assignment())

    wait_until(has_joined, "the foreign member has joined")
    try:
        found = findings(here, KSTREAMS_TRANSACTION_TIMEOUT_MS="70000", KSTREAMS_SESSION_TIMEOUT_MS="80000")
    finally:
        member.close()
    stopped = ("stopped", here.group)
    assert found == {
        ("foreign_member", other): "error",
        ("input_lost", f"join: {here.topic('b')}[1]"): "error",
        ("journal_settings", journal): "error",
        ("missing_topic", here.topic("joined")): "error",
        ("partitions_differ", "join"): "error",
        ("retention_bytes", f"join: {here.topic('a')}[0]"): "error",
        ("retention_time", f"work: {source}[0]"): "error",
        ("transaction_timeout", "brokers"): "error",
        ("offsets_retention", "brokers"): "warning",
        ("unclean_election", source): "warning",
        stopped: "note",
    }
    # the next record is younger than retention.ms, and older than half of it
    careless.set_committed(here.group, {(source, 0): 1})
    assert findings(here)["retention_time", f"work: {source}[0]"] == "warning"
    assert findings(careless.bootstrap_servers) == {("offsets_retention", "brokers"): "warning"}


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
    assert findings(here) == {("position_expired", f"work: {here.topic('in')}[0]"): "error"}


def test_hanging_transaction_is_found_with_the_command_that_ends_it(
    careless: Cluster, name: str, tmp_path: Path
) -> None:
    here = Site(careless, name, tmp_path, MAP, "in")
    work = Work(careless, f"{name}.other", group=here.group)
    work.source = here.topic("in")
    careless.transaction("first", [(work.target, b"")])  # the broker creates its own topics
    careless.set_committed(here.group, {(here.topic("in"), 0): 0})
    leave_hanging(careless.bootstrap_servers, work, b"hanging", 1)
    kept_in = GroupAdmin(Settings(bootstrap_servers=careless.bootstrap_servers)).positions_partition(here.group)
    (row,) = (json.loads(line) for line in doctor(here, "--json").out.splitlines() if str(kept_in) in line)
    assert (row["severity"], row["kind"]) == ("error", "hanging_transaction")
    command = row["remedy"].removeprefix("kstreams transactions find-hanging, then kstreams ")
    assert command.startswith(f"transactions abort --topic {kept_in.topic} --partition {kept_in.partition} ")
    for each in (row["subject"], "never ends by itself"):
        assert each in row["meaning"]
    # positions that it pins are not moved
    for verb in (("reset", "work", "--to-beginning", "--yes"), ("export",)):
        ended = here.recover(*verb)
        assert (ended.status, ended.out, len(ended.error_lines)) == (2, "", 1), ended
        assert f"the offsets of {here.topic('in')}[0] are pending in a transaction" in ended.err
        assert ended.err.endswith("nothing was changed\n")


def test_no_broker_and_a_wrong_graph_are_one_message_each(tmp_path: Path) -> None:
    ended = doctor("127.0.0.1:1", KSTREAMS_REQUEST_TIMEOUT_MS="2000")
    assert (ended.status, ended.out, len(ended.error_lines)) == (3, "", 1), ended
    ended = doctor("127.0.0.1:1", tmp_path / "none.py")
    assert (ended.status, ended.out, len(ended.error_lines)) == (2, "", 1), ended
