"""`kstreams transactions` on a real broker: what hangs is found, named, and ended; what lives is left alone.

`kstreams doctor` on the same broker finds it, and each other fault that is made.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.errors import Retriable
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.groups import Pending
from kstreams_py.kafka.transaction_admin import TransactionAdmin
from kstreams_py.records import TopicPartition
from tests.clusters import OF_BROKERS, open_cluster
from tests.system.command import Finished, kstreams
from tests.system.hanging import (
    TIMEOUT_MS,
    Work,
    admin,
    leave_hanging,
    leave_output_hanging,
    write_behind_the_coordinator,
)
from tests.system.harness import Cluster, WorkerProcess, running, wait_until
from tests.system.operated import JOIN, MAP, Site
from tests.system.operated import JOURNALED as WORK
from tests.system.test_doctor import doctor, findings


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker that accepts records of transactions that their coordinator does not know, and keeps offsets a day."""
    careless = {"transaction.partition.verification.enable": "false", "offsets.retention.minutes": "1440"}
    with EmbeddedKafka(settings=OF_BROKERS | careless) as kafka:
        cluster = Cluster(kafka.bootstrap_servers)
        cluster.create("first")
        # the broker creates its own topics
        cluster.transaction("first", [("first", b"")])
        cluster.set_committed("first", {("first", 0): 0})
        del cluster  # its client may not end once the broker has
        yield kafka.bootstrap_servers


class Operator:
    """Runs `kstreams transactions` on the broker."""

    def __init__(self, servers: str, **environment: str) -> None:
        self.servers = servers
        self._environment = environment

    def run(self, *arguments: object, typed: str = "") -> Finished:
        environment = {"KSTREAMS_BOOTSTRAP_SERVERS": self.servers, **self._environment}
        return kstreams("transactions", *arguments, environment=environment, typed=typed)

    def refused(self, *arguments: object) -> str:
        """The one message of a command that is a user's mistake."""
        ended = self.run(*arguments)
        assert (ended.status, ended.out, len(ended.error_lines)) == (2, "", 1), ended
        return ended.err.removeprefix("error: ").strip()

    def found(self, *arguments: object) -> list[dict[str, Any]]:
        """What find-hanging finds, without its ages."""
        ended = self.run("find-hanging", "--json", *arguments)
        rows = [json.loads(line) for line in ended.out.splitlines()]
        assert (ended.status, ended.err) == (1 if rows else 0, ""), ended
        for row in rows:
            assert row.pop("seconds") >= 0
        return rows


@pytest.fixture
def operator(servers: str) -> Operator:
    return Operator(servers)


@pytest.fixture
def cluster(servers: str) -> Cluster:
    return Cluster(servers)


def place(partition: TopicPartition, start: int) -> tuple[object, ...]:
    """The arguments that name a transaction on a partition."""
    return "--topic", partition.topic, "--partition", partition.partition, "--start-offset", start


def write_graph(directory: Path, name: str) -> tuple[Path, ks.Graph]:
    """A graph that copies NAME.in to NAME.out by the processor `copy`: as a file, and itself."""
    file = directory / "app.py"
    file.write_text(
        "import kstreams_py as ks\n"
        f"graph = ks.Graph({name!r})\n"
        f"graph.map(graph.topic('{name}.in'), to=graph.topic('{name}.out'), id='copy')(lambda value: value)\n",
        encoding="utf-8",
    )
    graph = ks.Graph(name)
    graph.map(graph.topic(f"{name}.in"), to=graph.topic(f"{name}.out"), id="copy")(lambda value: value)
    return file, graph


def test_hanging_transaction_is_found_everywhere_and_a_worker_goes_on_after_aborts(
    servers: str, operator: Operator, cluster: Cluster, name: str, tmp_path: Path
) -> None:
    work = Work(cluster, name, group=f"{name}.copy")
    cluster.write(work.source, [b"0", b"1"])
    leave_hanging(servers, work, b"hanging", 1)
    cluster.write(work.target, [b"a", b"b"])
    cluster.transaction(f"{name}.other", [(work.target, b"c")])
    cluster.transaction(f"{name}.other", [(work.target, b"aborted")], commit=False)
    settings = Settings(bootstrap_servers=servers, request_timeout_ms=1_000)
    kafka = open_cluster(settings)
    output, kept_in = (
        TopicPartition(work.target, 0),
        GroupAdmin(Settings(bootstrap_servers=servers)).positions_partition(work.group),
    )
    file, graph = write_graph(tmp_path, name)

    def read() -> tuple[object, ...]:
        return cluster.values(work.target), operator.found("--graph", file)

    (first, second) = operator.found("--graph", file)
    (producer, epoch, start) = (second[each] for each in ("producer_id", "producer_epoch", "start_offset"))
    common = {
        "transactional_id": work.id,
        "state": "Empty",
        "producer_id": producer,
        "producer_epoch": epoch,
        "hangs": True,
        "committed": None,
        "records": 1,
        "readers_stop_at": None,
        "complete": True,
    }
    abort = "kstreams transactions abort --topic"
    assert first == common | {
        "topic": work.target,
        "partition": 0,
        "start_offset": 0,
        "waiting": 3,
        "positions": {},
        "command": f"{abort} {work.target} --partition 0 --start-offset 0",
    }
    assert second == common | {
        "topic": "__consumer_offsets",
        "partition": kept_in.partition,
        "start_offset": start,
        "waiting": 0,
        "positions": {work.group: [{"topic": work.source, "partition": 0, "offset": 1}]},
        "command": f"{abort} __consumer_offsets --partition {kept_in.partition} --start-offset {start}",
    }
    everywhere = operator.run("find-hanging", "-b", servers)
    assert everywhere.status == 1
    assert f"\n  {first['command']} --bootstrap-servers {servers}\n" in everywhere.out
    with pytest.raises(Retriable):
        work.committed(kafka)
    before = read()
    assert before == ([], [first, second])

    assert operator.refused("abort", *place(kept_in, start)) == (
        f"UserMistake: producer {producer} has outputs open too, which its next transaction would commit: nothing was "
        f"changed; end these first:\n      {first['command']}"
    )
    shown = operator.run("abort", *place(output, 0), "--dry-run")
    assert (shown.status, shown.err, shown.out.splitlines()[1:]) == (
        0,
        "",
        [
            (
                "  whether it was committed is not known: its coordinator's log has no decision about this partition; "
                "an abort discards 1 record of its own for good"
            ),
            "  3 records of other, committed transactions wait behind it",
            "would be aborted; nothing was changed",
        ],
    )
    for typed in ("n\n", ""):
        declined = operator.run("abort", *place(output, 0), typed=typed)
        assert (declined.status, declined.out.endswith("nothing was changed\n")) == (1, True)
    assert read() == before

    accepted = operator.run("abort", *place(output, 0), typed="y\n")
    assert (accepted.status, accepted.out.splitlines()[-1]) == (0, f"abort it? [y/N]: aborted on {output}")
    assert read() == ([b"a", b"b", b"c"], [second])
    ended = operator.run("abort", *place(kept_in, start), "--yes", "--json")
    assert (ended.status, json.loads(ended.out)["ended"], operator.found("--graph", file)) == (0, "abort", [])
    assert work.committed(open_cluster(Settings(bootstrap_servers=servers))) is None
    with running(graph, Settings(bootstrap_servers=servers, schema_directory=tmp_path)):
        cluster.await_committed(work.group, work.source, {0: 2})
    assert cluster.values(work.target) == [b"a", b"b", b"c", b"0", b"1"]


def test_exactly_once_worker_waits_while_an_output_of_its_own_hangs(
    servers: str, operator: Operator, cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """Otherwise the marker of its next transaction would make the hanging output visible, which is made once more."""
    work = Work(cluster, name, group=f"{name}.copy")
    work.id = f"{name}.copy.0"
    cluster.set_committed(work.group, {(work.source, 0): 0})
    cluster.write(work.source, [b"0", b"1"])
    leave_output_hanging(servers, work, b"0")
    file, _ = write_graph(tmp_path, name)
    environment = Settings(bootstrap_servers=servers, schema_directory=tmp_path / "schemas").as_environment()
    worker = WorkerProcess(file, 0, environment)
    try:
        told = (
            f"a transaction of {work.id} is open on {work.target}[0] from offset 0, its coordinator will not end it, "
            "and the next one would commit what it has written: nothing is written until you end it by the commands "
            f"that `kstreams transactions find-hanging --topic {work.target} --bootstrap-servers {servers}` prints"
        )
        wait_until(lambda: worker.text.count(told) >= 2, "the worker says that it waits, and for what")
        assert cluster.values(work.target, "read_uncommitted") == [b"0"]
        (found,) = operator.found("--graph", file)
        assert (found["topic"], found["transactional_id"]) == (work.target, work.id)
        assert operator.run(*found["command"].split()[2:], "--yes").status == 0
        cluster.await_committed(work.group, work.source, {0: 2})
        assert cluster.values(work.target) == [b"0", b"1"]
    finally:
        worker.kill()


JOURNALED = """
import kstreams_py as ks
graph = ks.Graph({name!r})
out = graph.topic("{name}.out", cluster={cluster!r})
graph.map(graph.topic("{name}.in"), to=out, id="copy", persistence="journal")(lambda value: value)
"""


@pytest.mark.long
def test_recovery_whose_outputs_a_transaction_hides_ends_until_the_named_command(
    servers: str, operator: Operator, cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """Whether its last delivery was committed is not guessed, nor is it waited for without end."""
    work = Work(cluster, name, group=f"{name}.copy")
    work.id = f"{name}.foreign"
    cluster.write(work.target, [b"before"])
    leave_output_hanging(servers, work, b"foreign")
    cluster.write(work.source, [b"0", b"1"])
    file = tmp_path / "app.py"
    file.write_text(JOURNALED.format(name=name, cluster=""), encoding="utf-8")
    settings = Settings(bootstrap_servers=servers, transaction_timeout_ms=2_000, schema_directory=tmp_path / "schemas")
    workers = []

    def start() -> WorkerProcess:
        workers.append(WorkerProcess(file, 0, settings.as_environment()))
        return workers[-1]

    try:
        killed = start()
        cluster.await_committed(work.group, work.source, {0: 2})
        killed.kill()
        waiting = start()
        assert waiting.wait() == 3, waiting.text
        of_topic = f"--topic {work.target}"
        named = f"`kstreams transactions find-hanging {of_topic} --bootstrap-servers {servers}` shows whether it hangs"
        assert named in waiting.text
        hides = f"copy: a transaction hides {work.target}[0]@"
        (error,) = {line for line in waiting.text.splitlines() if hides in line and "for more than 32 s" in line}
        (command,) = re.findall("`kstreams transactions (abort [^`]*)`", error)
        assert command == f"abort {of_topic} --partition 0 --start-offset 1 --bootstrap-servers {servers}"
        assert operator.run(*command.split(), "--yes").status == 0
        cluster.write(work.source, [b"2"])
        worker = start()
        cluster.await_committed(work.group, work.source, {0: 3})
        assert "copy: partition 0: recovery 1d, 2, 3a" in worker.text
        assert cluster.values(work.target) == [b"before", b"0", b"1", b"2"]
    finally:
        for each in workers:
            each.kill()


@pytest.mark.long
def test_what_is_wrong_on_another_cluster_is_found_and_ended_by_the_printed_command(
    servers: str, operator: Operator, cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """The other cluster is the same broker by another name."""
    work = Work(cluster, name)
    cluster.write(work.target, [b"before"])
    leave_output_hanging(servers, work, b"hanging")
    delivered = f"__ks.{name}.copy.delivered"
    cluster.create(delivered, config={"cleanup.policy": "compact,delete"})
    file = tmp_path / "app.py"
    file.write_text(JOURNALED.format(name=name, cluster="other"), encoding="utf-8")
    config = tmp_path / "settings.toml"
    config.write_text(f'[clusters.other]\nbootstrap_servers = "{servers}"\n', encoding="utf-8")

    ended = kstreams("doctor", file, "--json", "-b", servers, "--config", config, environment={})
    rows = [json.loads(line) for line in ended.out.splitlines()]
    found = {row["kind"]: row for row in rows if row["subject"].startswith("cluster 'other': ")}
    assert found["delivered_settings"]["subject"] == f"cluster 'other': {delivered}"
    assert found["hanging_transaction"]["remedy"].startswith(
        "kstreams transactions find-hanging --cluster other, then "
    )
    (row,) = operator.found("--graph", file, "--config", config)
    assert (row["topic"], row["transactional_id"]) == (work.target, work.id)
    assert row["command"].endswith(f" --config {config} --cluster other")
    assert operator.run(*row["command"].split()[2:], "--yes").status == 0
    assert operator.found("--graph", file, "--config", config) == []


def test_transaction_of_a_living_producer_is_found_only_when_older_and_is_not_ended(
    operator: Operator, cluster: Cluster, name: str
) -> None:
    work = Work(cluster, name)
    producer = work.producer()
    work.begin(producer, b"alive", 1)
    of_topic = ("find-hanging", "--topic", work.target)
    young = operator.run(*of_topic, "--older-than", "1h")
    assert (young.status, young.out, young.err) == (0, "no transaction hangs\n", "")
    assert operator.run(*of_topic).status == 0
    old = operator.run(*of_topic, "--older-than", "0s")
    assert old.status == 1
    headline, advice = old.out.splitlines()
    assert headline.startswith(f"{work.target}[0]: producer ")
    assert f" ({work.id}) from offset 0, " in headline
    assert headline.endswith(" s old: its coordinator will end it")
    assert advice.startswith("  do not end it: ")
    for verb in ("abort", "commit"):
        refusal = operator.refused(verb, *place(TopicPartition(work.target, 0), 0), "--yes")
        assert refusal.endswith(
            "its coordinator will end it: nothing was changed; start its producer again, which ends it, or wait for "
            "its time-out"
        )
    producer.commit_transaction(30)
    wait_until(lambda: operator.run(*of_topic, "--older-than", "0s").status == 0, "nothing is open")
    assert cluster.values(work.target) == [b"alive"]


@pytest.mark.parametrize("decided", ["commit", pytest.param("abort", marks=pytest.mark.long)])
def test_transaction_whose_marker_was_skipped_is_ended_as_its_coordinator_decided(
    servers: str, operator: Operator, cluster: Cluster, name: str, decided: str
) -> None:
    """Its coordinator calls it complete, and it is open on the partition: what a broker that was killed leaves."""
    work, began = Work(cluster, name), int(time.time() * 1000)
    other = "abort" if decided == "commit" else "commit"
    output = TopicPartition(work.target, 0)
    producer = work.producer()
    work.begin(producer, b"first", 1)
    (opened,) = GroupAdmin(Settings(bootstrap_servers=servers)).open_transactions(output)
    if decided == "commit":
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    cluster.await_markers(work.target)  # it would end what is written before it
    with admin(servers) as client:
        write_behind_the_coordinator(
            client, work, b"skipped", opened.producer_id, opened.epoch, sequence=1, time_ms=began
        )
    (found,) = operator.found("--topic", work.target)
    state = "CompleteCommit" if decided == "commit" else "CompleteAbort"
    assert (found["state"], found["hangs"], found["committed"]) == (state, True, decided == "commit")
    assert found["command"].startswith(f"kstreams transactions {decided} --topic {work.target} --partition 0 ")
    start = found["start_offset"]
    refusal = operator.refused(other, *place(output, start), "--yes")
    assert f"`{found['command']}`" in refusal
    assert operator.run(decided, *place(output, start), "--yes").status == 0
    assert operator.found("--topic", work.target) == []
    assert cluster.values(work.target) == ([b"first", b"skipped"] if decided == "commit" else [])


def test_transactions_are_listed_and_described(operator: Operator, cluster: Cluster, name: str) -> None:
    work = Work(cluster, name)
    producer = work.producer()
    work.begin(producer, b"open", 1)
    cluster.transaction(f"{name}.other", [(work.target, b"1")])
    wait_until(lambda: "CompleteCommit" in operator.run("describe", f"{name}.other").out, "the other is complete")
    rows = [json.loads(line) for line in operator.run("list", "--contains", name, "--json").out.splitlines()]
    ids = [row["producer_id"] for row in rows]
    assert rows == [
        {"transactional_id": work.id, "state": "Ongoing", "producer_id": ids[0], "coordinator": 0},
        {"transactional_id": f"{name}.other", "state": "CompleteCommit", "producer_id": ids[1], "coordinator": 0},
    ]
    filtered = operator.run("list", "--state", "Ongoing", "--producer-id", ids[0], "--producer-id", ids[1])
    assert filtered.out == f"{work.id}  Ongoing         producer {ids[0]}, coordinator 0\n"
    kept_in = GroupAdmin(Settings(bootstrap_servers=operator.servers)).positions_partition(work.group)
    described = json.loads(operator.run("describe", work.id, "--json").out)
    assert described.pop("started_at").endswith("+00:00")
    assert described == {
        "transactional_id": work.id,
        "state": "Ongoing",
        "producer_id": ids[0],
        "producer_epoch": 0,
        "coordinator": 0,
        "timeout_seconds": TIMEOUT_MS / 1000,
        "partitions": [
            {"topic": "__consumer_offsets", "partition": kept_in.partition},
            {"topic": work.target, "partition": 0},
        ],
    }
    text = operator.run("describe", work.id).out.splitlines()
    assert text[:3] == [
        f"{work.id}: Ongoing, coordinator 0", f"  producer    {ids[0]} epoch 0", "  time-out    60 s",
    ]  # fmt: skip
    assert text[4] == f"  partitions  {kept_in}, {work.target}[0]"
    producer.abort_transaction(30)


def test_mistakes_of_an_operator_are_one_message_each(operator: Operator, cluster: Cluster, name: str) -> None:
    cluster.create(name)
    cluster.partitions(name)
    missing = f"TopicError: topic '{name}.none' does not exist: correct the name or --bootstrap-servers"
    assert operator.refused("find-hanging", "--topic", f"{name}.none") == missing
    assert operator.refused("abort", *place(TopicPartition(f"{name}.none", 0), 0)) == missing
    assert operator.refused("abort", *place(TopicPartition(name, 3), 0)) == (
        f"UserMistake: topic {name!r} has no partition 3: it has 1, numbered from 0"
    )
    assert operator.refused("abort", *place(TopicPartition(name, 0), 7), "--yes") == (
        f"UserMistake: no transaction is open on {name}[0] from offset 7 (open from: none): nothing was changed; it "
        "may have ended since: see `kstreams transactions find-hanging`"
    )
    assert operator.refused("describe", f"{name}.id") == (
        f"UserMistake: its coordinator does not know transactional id '{name}.id': `kstreams transactions list` prints "
        "the known ones"
    )
    away = Operator("127.0.0.1:1", KSTREAMS_REQUEST_TIMEOUT_MS="1000").run("find-hanging", "--topic", name)
    assert (away.status, away.out, len(away.error_lines)) == (3, "", 1)
    assert "no Kafka broker answers at 127.0.0.1:1" in away.err


# Committed offsets that a hanging transaction pins (docs/exactly-once.md): cause, transaction, remedy.


def test_committed_offsets_of_a_group_are_in_the_partition_of_its_hash(
    servers: str, cluster: Cluster, name: str
) -> None:
    groups = GroupAdmin(Settings(bootstrap_servers=servers))
    for number, group in enumerate(("polygenelubricants", "polygenelubricantt", name)):
        work = Work(cluster, f"{name}.{number}", group)
        producer = work.producer()
        work.begin(producer, b"any", 0)
        (found,) = groups.open_transactions(groups.positions_partition(group))
        assert (found.transactional_id, found.hangs) == (work.id, False)
        assert abs(found.written_at - time.time()) < 60
        producer.abort_transaction(30)
        cluster.await_markers("__consumer_offsets")  # the next group may be in the same partition


def test_hanging_transaction_pins_offsets_until_every_partition_has_its_marker(
    servers: str, cluster: Cluster, name: str
) -> None:
    """If only the offsets get a marker, the group continues, and its next commit commits the hanging outputs too.

    The next transaction of the same transactional id has the same producer id: its marker ends the hanging one.
    """
    kafka = open_cluster(Settings(bootstrap_servers=servers))
    impatient = open_cluster(Settings(bootstrap_servers=servers, request_timeout_ms=1_000))
    groups = GroupAdmin(Settings(bootstrap_servers=servers))
    works = [Work(cluster, f"{name}.{n}") for n in range(3)]  # will be aborted, committed, aborted in the offsets only
    for work in works:
        leave_hanging(servers, work, b"hanging", 1)

    for work in works:
        found = kafka.pending(work.group, [work.input])
        assert (found.partitions, found.unknown) == ((work.input,), "")
        (mine,) = [each for each in found.transactions if each.transactional_id == work.id]
        assert mine.hangs
        prefix = f"({work.id}) from offset {mine.start}, "
        assert prefix in (text := found.describe(time.time(), "this"))
        assert text.partition(prefix)[2].endswith("outputs first and __consumer_offsets last")
        with pytest.raises(Retriable):
            work.committed(impatient)
        assert (cluster.values(work.target), cluster.values(work.target, "read_uncommitted")) == ([], [b"hanging"])

    for work in works:
        kept_in = groups.positions_partition(work.group)
        for partition in (TopicPartition(work.target, 0), kept_in):
            if work is not works[2] or partition == kept_in:
                (mine,) = [each for each in groups.open_transactions(partition) if each.transactional_id == work.id]
                TransactionAdmin(Settings(bootstrap_servers=servers)).write_marker(
                    partition, mine, commits=work is works[1]
                )
        assert kafka.pending(work.group, [work.input]) == Pending(work.group, ())
    assert [work.committed(kafka) for work in works] == [None, 1, None]
    for work in works:
        work.go_on(b"next", 2)
    cluster.await_markers(*(work.target for work in works))
    assert [cluster.values(work.target) for work in works] == [[b"next"], [b"hanging", b"next"], [b"hanging", b"next"]]
    assert [work.committed(kafka) for work in works] == [2, 2, 2]


# The doctor.

DAY_MS = 86_400_000


def test_doctor_finds_each_fault_that_is_made(cluster: Cluster, name: str, tmp_path: Path) -> None:
    processors = "; ".join((WORK, JOIN.replace("'work'", "'join'").replace("'out'", "'joined'")))
    here = Site(cluster, name, tmp_path, processors)
    (source, other, journal) = here.topic("in"), f"{name}.join", f"__ks.{name}.work.journal"
    cluster.create(source, config={"unclean.leader.election.enable": "true", "retention.ms": str(DAY_MS)})
    cluster.create(here.topic("a"), config={"retention.bytes": "4000", "retention.ms": "-1"})
    cluster.create(here.topic("b"), partitions=2)
    cluster.create(journal, config={"cleanup.policy": "compact"})
    now = int(time.time() * 1000)
    cluster.write(source, [b"old"], timestamp=now - 2 * DAY_MS)
    cluster.write(source, [b"older than half"], timestamp=now - DAY_MS * 3 // 4)
    cluster.write(here.topic("a"), [b"x" * 1_000] * 10)
    cluster.set_committed(here.group, {(source, 0): 0})
    cluster.set_committed(other, {(here.topic("a"), 0): 0, (here.topic("b"), 1): 7})
    member = ck.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": other})
    member.subscribe([here.topic("a")])

    def has_joined() -> bool:
        member.poll(0.05)
        return bool(member.assignment())

    wait_until(has_joined, "the foreign member has joined")
    try:
        found = findings(here, KSTREAMS_TRANSACTION_TIMEOUT_MS="1000000", KSTREAMS_SESSION_TIMEOUT_MS="1000000")
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
        ("dropped", "join"): "note",
        ("dropped", "work"): "note",
    }
    # the next record is younger than retention.ms, and older than half of it
    cluster.set_committed(here.group, {(source, 0): 1})
    assert findings(here)["retention_time", f"work: {source}[0]"] == "warning"
    assert findings(cluster.bootstrap_servers) == {("offsets_retention", "brokers"): "warning"}


def test_doctor_finds_a_hanging_transaction_with_the_command_that_ends_it(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    here = Site(cluster, name, tmp_path, MAP, "in")
    work = Work(cluster, f"{name}.other", group=here.group)
    work.source = here.topic("in")
    cluster.set_committed(here.group, {(here.topic("in"), 0): 0})
    leave_hanging(cluster.bootstrap_servers, work, b"hanging", 1)
    kept_in = GroupAdmin(Settings(bootstrap_servers=cluster.bootstrap_servers)).positions_partition(here.group)
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
