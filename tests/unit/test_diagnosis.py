"""The rules of `kstreams doctor`: each fact, and the whole text of what is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.graph.source import RefusedInput, SourceStatus
from kstreams_py.kafka.described_cluster import ClusterDescription, LogInfo, PartitionInfo, TopicDescription
from kstreams_py.kafka.groups import GroupInfo, Member
from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.operations.doctor import diagnosis
from kstreams_py.operations.doctor.diagnosis import diagnose, is_well
from kstreams_py.operations.doctor.findings import (
    Examined,
    Facts,
    LettersFact,
    Severity,
    SourceFact,
    as_fields,
    describe,
)
from kstreams_py.operations.doctor.of_graphs import OF_GRAPH, find_positions
from kstreams_py.operations.recover.task_status import TaskStatus
from kstreams_py.operations.sources import show_counts
from kstreams_py.operations.transactions.hanging import CommitDecision, FoundTransaction
from kstreams_py.records import TopicPartition

A, B, OUT, DEAD = "in.a", "in.b", "out", "dead"
A0 = TopicPartition(A, 0)
SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "10000",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "1",
    "max.message.bytes": "1000",
}
BROKER = {"offsets.retention.minutes": "10080", "transaction.max.timeout.ms": "900000"}
JOURNAL = "__ks.g.p.journal"


def topic(name: str, count: int = 1, partition: PartitionInfo | None = None, **changed: str) -> TopicDescription:
    settings = SETTINGS | {key.replace("_", "."): value for key, value in changed.items()}
    return TopicDescription(name, (partition or PartitionInfo(0, 1, 1),) * count, settings)


def cluster(*topics: TopicDescription, brokers: int = 1, **changed: Any) -> ClusterDescription:
    """A cluster with the topics of the graph, some of them replaced."""
    found = {name: topic(name) for name in (A, B, OUT, DEAD)} | {each.name: each for each in topics}
    return ClusterDescription(dict.fromkeys(range(brokers), BROKER), found, **changed, servers="kafka:9092")


def examined(**options: Any) -> Examined:
    graph = ks.Graph("g", errors=DEAD)
    graph.join(graph.topic(A), graph.topic(B), by="order", to=graph.topic(OUT), id="p", **options)(lambda a, b: a + b)
    return Examined(graph, "app.py:graph", 60_000)


def shown(facts: Facts, of: Examined | None = None) -> list[str]:
    return [describe(each) for each in diagnose(facts, of)]


def test_healthy_cluster_and_graph_have_no_finding() -> None:
    group = GroupInfo("Stable", (Member("g.p.0", "id", "client", "host", (A0,)),))
    facts = Facts(
        cluster(release="4.3"),
        now=100,
        groups={"g.p": group},
        positions={"g.p": {A0: 5}},
        logs={A0: LogInfo(0, 9, {90_000: 5, 95_000: 5})},
        client="2.16.0",
        tested_clients={"2.16.0"},
    )
    assert shown(facts, examined()) == []
    assert is_well([])


ALTER = f"  kafka-configs.sh --bootstrap-server kafka:9092 --alter --topic {A} --add-config "
DESCRIBE = "kafka-topics.sh --bootstrap-server kafka:9092 --describe"
REPLICATED: Mapping[str, tuple[ClusterDescription, str]] = {
    "offline": (
        cluster(topic(A, 2, PartitionInfo(-1, 1, 0))),
        (
            f"error: {A}[0, 1]: the partition has no leader: it can be neither read nor written\n"
            f"  start the brokers that have it ({DESCRIBE} --unavailable-partitions)"
        ),
    ),
    "behind": (
        cluster(topic(A, 1, PartitionInfo(0, 3, 2), min_insync_replicas="2")),
        (
            f"warning: {A}[0]: replicas are not in sync: fewer brokers than planned may fail\n"
            f"  start the brokers that are away, and wait ({DESCRIBE} --under-replicated-partitions)"
        ),
    ),
    "below the least": (
        cluster(topic(A, 3, PartitionInfo(0, 3, 1), min_insync_replicas="2")),
        (
            f"error: {A}[0, 1, 2]: fewer replicas are in sync than min.insync.replicas (2): every write with acks=all "
            f"is refused\n  start the brokers that are away, and wait ({DESCRIBE} --under-min-isr-partitions)"
        ),
    ),
    "unclean": (
        cluster(topic(A, unclean_leader_election_enable="true")),
        (
            f"warning: {A}: a replica that is behind may become the leader: committed records are lost then\n"
            f"{ALTER}unclean.leader.election.enable=false"
        ),
    ),
    "few in sync": (
        cluster(topic(A, 1, PartitionInfo(0, 3, 3))),
        (
            f"warning: {A}: min.insync.replicas is 1 of 3 replicas: a write may be acknowledged by one broker and lost "
            f"with it\n{ALTER}min.insync.replicas=2"
        ),
    ),
    "all in sync": (
        cluster(topic(A, 1, PartitionInfo(0, 3, 3), min_insync_replicas="3")),
        (
            f"warning: {A}: min.insync.replicas is 3 of 3 replicas: one broker that is away stops all writes\n"
            f"{ALTER}min.insync.replicas=2"
        ),
    ),
    "too many in sync": (
        cluster(topic(A, 1, PartitionInfo(0, 2, 2), min_insync_replicas="3")),
        (
            f"error: {A}: min.insync.replicas is 3 of 2 replicas: every write with acks=all is refused\n"
            f"{ALTER}min.insync.replicas=1"
        ),
    ),
    "settings not seen": (
        ClusterDescription({0: BROKER}, {A: TopicDescription(A, (PartitionInfo(0, 3, 3),), {})}),
        (
            f"note: settings of topic {A}: not seen: problems there are not found\n"
            f"  grant this user DESCRIBE_CONFIGS on topic {A}"
        ),
    ),
    "topic not seen": (
        cluster(hidden=("x",)),
        "note: topic x: not seen: problems there are not found\n  grant this user DESCRIBE on topic x",
    ),
    "brokers not seen": (
        ClusterDescription({0: {}, 1: {}}, {}),
        (
            "note: settings of broker 0, broker 1: not seen: problems there are not found\n"
            "  grant this user DESCRIBE_CONFIGS on the cluster"
        ),
    ),
    "release": (
        cluster(release="3.9"),
        (
            "note: 3.9: this package is tested with brokers of Kafka 4.3\n"
            "  run the tests of your graph against these brokers (KSTREAMS_TEST_BOOTSTRAP)"
        ),
    ),
    "offsets": (
        ClusterDescription({0: BROKER, 1: BROKER | {"offsets.retention.minutes": "90"}}, {}),
        (
            "warning: brokers: offsets.retention.minutes is 90: a graph that is stopped for longer than 90 minutes "
            "loses its positions\n  offsets.retention.minutes=10080 or more on all brokers"
        ),
    ),
}


@pytest.mark.parametrize("case", REPLICATED)
def test_findings_of_a_cluster(case: str) -> None:
    described, expected = REPLICATED[case]
    assert shown(Facts(described, now=100)) == [expected]


def test_broker_to_which_no_connection_can_be_made_is_found_with_its_address() -> None:
    topics = [topic(name, 1, PartitionInfo(0, 2, 2), min_insync_replicas="1") for name in (A, B, OUT)]
    described = cluster(*topics, silent={1: "b:9092"})
    (found,) = (each for each in shown(Facts(described, now=100)) if "broker 1" in each)
    assert found == (
        "warning: broker 1: no connection to b:9092 can be made: its partitions are offline, and its replicas are not "
        "in sync\n  start it, or make it reachable from this machine"
    )


def test_one_replica_on_several_brokers_is_found_for_each_topic() -> None:
    (_, second, *others) = shown(Facts(cluster(brokers=3), now=100))
    assert second == (
        f"warning: {A}: it has one replica in a cluster of 3 brokers: its broker's disk holds the only copy\n"
        "  kafka-reassign-partitions.sh with 3 replicas, or replication=3 of a topic that is created again"
    )
    assert len(others) == 2


@pytest.mark.parametrize(
    ("hangs", "severity", "kind"),
    [(True, "error", "hanging_transaction"), (None, "warning", "hanging_transaction"),
     (False, "warning", "open_transaction")],
)  # fmt: skip
def test_transactions_are_findings_by_whether_they_end(hangs: bool | None, severity: str, kind: str) -> None:
    found = FoundTransaction(A0, OpenTransaction(7, 1, -1, 3, 40.0, "id", hangs, "Empty"), None, CommitDecision(None))
    (finding,) = diagnose(Facts(cluster(), now=100, found=[found]), None)
    assert (finding.severity, finding.kind, finding.subject) == (severity, kind, str(A0))
    ends = f"kstreams transactions find-hanging, then kstreams transactions abort --topic {A} --partition 0"
    assert finding.remedy.startswith(ends) is (hangs is not False)


def test_client_that_is_not_tested_is_a_warning() -> None:
    (finding,) = diagnose(Facts(cluster(), now=1, client="2.99.0", tested_clients={"2.16.0"}), None)
    assert as_fields(finding) == {
        "severity": "warning",
        "kind": "librdkafka",
        "subject": "2.99.0",
        "meaning": "this version of librdkafka is not tested: late requests are recognized by the wording of its log",
        "remedy": "pip install confluent-kafka==2.16.0",
    }
    assert not is_well([finding])


@pytest.mark.parametrize(
    ("position", "log", "expected"),
    [
        (5, LogInfo(5, 9, {90_000: 6, 95_000: 9}), ("error", "is older than all of retention.ms (10 s)")),
        (6, LogInfo(5, 9, {90_000: 6, 95_000: 9}), ("warning", "is older than half of retention.ms (10 s)")),
        (9, LogInfo(5, 9, {90_000: 9, 95_000: 9}), None),
        (4, LogInfo(5, 9), ("error", "its position is 4 and the log begins at 5: the next start ends with InputLost")),
        (10, LogInfo(5, 9), ("error", "its position is 10 and the log ends at 9: the next start ends with InputLost")),
    ],
)
def test_positions_are_compared_with_the_log(position: int, log: LogInfo, expected: tuple[str, str] | None) -> None:
    facts = Facts(cluster(), now=100, positions={"g.p": {A0: position}}, logs={A0: log})
    found = [(str(each.severity), each.meaning) for each in diagnose(facts, examined()) if each.subject == f"p: {A0}"]
    if expected is None:
        assert found == []
    else:
        ((severity, meaning),) = found
        assert (severity, expected[1] in meaning) == (expected[0], True)


def test_mutation_of_a_doctor_that_knows_no_start_of_a_log_finds_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogInfo(5, 9)
    test_positions_are_compared_with_the_log(4, log, ("error", "the log begins at 5"))
    left = [each for each in OF_GRAPH if each is not find_positions]
    monkeypatch.setattr(diagnosis, "OF_GRAPH", left)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        test_positions_are_compared_with_the_log(4, log, ("error", "the log begins at 5"))


@pytest.mark.parametrize(("position", "severity"), [(0, "error"), (50, "warning"), (80, None)])
def test_unread_bytes_are_estimated_by_offsets(position: int, severity: str | None) -> None:
    described = cluster(topic(A, retention_ms="-1", retention_bytes="1000"))
    log = LogInfo(0, 100, size=1_200)
    facts = Facts(described, now=100, positions={"g.p": {A0: position}}, logs={A0: log})
    found = [each for each in diagnose(facts, examined()) if each.kind == "retention_bytes"]
    assert [str(each.severity) for each in found] == ([] if severity is None else [severity])
    compacted = cluster(topic(A, retention_bytes="1000", cleanup_policy="compact"))
    facts = Facts(compacted, now=100, positions={"g.p": {A0: position}}, logs={A0: log})
    assert [each for each in diagnose(facts, examined()) if each.kind == "retention_bytes"] == []


def test_findings_of_a_graph_are_sorted_by_severity() -> None:
    described = ClusterDescription(
        {0: BROKER | {"transaction.max.timeout.ms": "5000"}},
        {
            A: topic(A, 2, max_message_bytes="5000"),
            B: topic(B, 1),
            OUT: topic(OUT),
            DEAD: topic(DEAD),
            JOURNAL: topic(JOURNAL, cleanup_policy="compact,delete", retention_ms="-1"),
        },
        servers="kafka:9092",
    )
    of = examined(persistence="journal")
    instances = {"g.p.0": "x", "": "other", "g.p.1": "x"}
    members = tuple(Member(each, each, client, "h", ()) for each, client in instances.items())
    facts = Facts(
        described,
        now=100,
        groups={"g.p": GroupInfo("Stable", members)},
        expired={"p": {A0: 7}},
        unseen={"transactions": "grant READ"},
    )
    assert [(str(f.severity), f.kind, f.subject) for f in diagnose(facts, of)] == [
        ("error", "foreign_member", "g.p"),
        ("error", "journal_settings", JOURNAL),
        ("error", "partitions_differ", "p"),
        ("error", "position_expired", f"p: {A0}"),
        ("error", "transaction_timeout", "brokers"),
        ("note", "max_message_bytes", f"p: {OUT}"),
        ("note", "not_seen", "transactions"),
        ("note", "spare_slots", "p"),
    ]
    remedies = {each.kind: each.remedy for each in diagnose(facts, of)}
    assert remedies["partitions_differ"] == (
        f"kafka-topics.sh --bootstrap-server kafka:9092 --alter --topic {B} --partitions 2; records keep "
        "their partitions"
    )
    assert remedies["position_expired"] == (
        f"stop its workers, then kstreams recover reset app.py:graph p --to-offset {A}:0:7 reads all that is kept; a "
        "later offset leaves out what was done"
    )


def test_missing_topics_are_errors_unless_they_are_hidden() -> None:
    described = ClusterDescription({0: BROKER}, {A: topic(A), DEAD: topic(DEAD)}, hidden=(B,))
    (missing, hidden) = diagnose(Facts(described, now=1), examined())
    create = "kstreams topics create app.py:graph"
    assert (missing.subject, missing.severity, missing.remedy) == (OUT, Severity.ERROR, create)
    assert (hidden.subject, hidden.kind) == (f"topic {B}", "not_seen")


def test_letters_that_wait_are_a_warning_of_their_topic_with_the_commands() -> None:
    waiting = {
        "some": LettersFact(19, is_whole=True, since="2026-05-01T12:00:00Z"),
        "more": LettersFact(7, is_whole=False, since=None),
        "one": LettersFact(1, is_whole=True, since=None),
    }
    remedy = (
        "\n  kstreams dead-letters list app.py:graph; fix the cause, then kstreams dead-letters replay app.py:graph; "
        "or kstreams dead-letters discard app.py:graph --reason TEXT"
    )
    assert shown(Facts(cluster(), now=1, letters=waiting), examined()) == [
        f"warning: more: at least 7 dead letters wait: nobody has replayed or discarded them{remedy}",
        f"warning: one: 1 dead letter waits: nobody has replayed or discarded it{remedy}",
        "warning: some: 19 dead letters wait, the first of 2026-05-01T12:00:00Z: nobody has replayed or discarded them"
        + remedy,
    ]


def test_groups_of_tasks_have_the_findings_of_groups_of_processors() -> None:
    graph = ks.Graph("g")
    parsed, read = graph.channel("parsed"), graph.topic(A)
    graph.map(read, to=[parsed, graph.topic(OUT)], id="parse")(lambda value: {})
    graph.alts(read, parsed, to=graph.topic(B), id="count")(lambda value: value)
    early, old = TopicPartition(A, 1), TopicPartition(A, 2)
    facts = Facts(
        cluster(topic(A, 3, max_message_bytes="5000")),
        now=100,
        groups={"g.in.a": GroupInfo("Stable", (Member("other", "id", "client", "host", ()),))},
        positions={"g.in.a": {A0: 8, early: 2, old: 5}},
        logs={A0: LogInfo(5, 9), early: LogInfo(5, 9), old: LogInfo(5, 9, {90_000: 6, 95_000: 9})},
    )
    of, name = Examined(graph, "app.py:graph", 60_000), "parse, count"
    found = {(each.kind, each.subject): each for each in diagnose(facts, of)}
    assert {*found} == {
        ("foreign_member", "g.in.a"), ("input_lost", f"{name}: {early}"), ("retention_time", f"{name}: {old}"),
        ("dropped", name), ("max_message_bytes", f"{name}: {OUT}"), ("max_message_bytes", f"{name}: {B}"),
    }  # fmt: skip
    assert found["input_lost", f"{name}: {early}"].remedy == (
        f"stop its workers, then kafka-consumer-groups.sh --bootstrap-server kafka:9092 --reset-offsets --group g.in.a "
        f"--topic {A}:1 --to-offset 5 --execute"
    )
    stopped = replace(facts, groups={"g.in.a": GroupInfo("Empty", ())}, logs={})
    (remedy,) = (each.remedy for each in diagnose(stopped, of) if each.kind == "stopped")
    assert remedy == f"start it before: without its positions, {name} reads the topic from its beginning"


def test_sources_have_findings_for_what_nobody_reads_again() -> None:
    refused = (RefusedInput("13", 0, "parse: ValueError: no 13"),)
    facts = {
        "a": SourceFact("a.db", SourceStatus(free=1, claimed=3, claimed_suspects=1)),
        "b": SourceFact("b.db", SourceStatus(abandoned=4, suspects=2, free=1)),
        "c": SourceFact("c.db", SourceStatus(free=1_000)),
        "d": SourceFact("d.db", SourceStatus(refused=2, shown=refused)),
        "e": SourceFact("e.db", why="there is no file 'e.db': correct the path of the source"),
        "f": SourceFact("a.db"),  # it keeps nothing
    }
    assert (
        show_counts(SourceStatus(0, 3, claimed_suspects=1)) == "3 under way, 1 of these after several deaths, 0 refused"
    )
    named = "app.py:graph"
    found = shown(Facts(cluster(), now=1, sources=facts), examined())
    assert found[:5] == [
        (
            "error: e (e.db): it cannot be read: there is no file 'e.db': correct the path of the source\n"
            "  repair it, or correct its declaration; what was read before stays claimed"
        ),
        (
            "warning: b (b.db): 4 inputs were under way when a worker ended without giving its inputs back; 2 of the "
            "inputs were so at several deaths, and are read by themselves\n"
            f"  kstreams run {named} reads them again, and stores what is stored already no second time"
        ),
        (
            "warning: d (d.db): 2 inputs were refused, and no worker reads them again (13: parse: ValueError: no 13, "
            f"...)\n  kstreams sources list {named}; fix the cause, then kstreams sources retry {named} "
            "--source d --all"
        ),
        (
            "warning: a (a.db): 1 input is under way, and was so at several deaths of workers before: at 5 deaths an "
            f"input is refused\n  read in the log of kstreams run {named} why its workers end, and fix that"
        ),
        (
            "note: c (c.db): 1,000 inputs were given back, and no worker has read them again\n"
            f"  kstreams run {named} reads them again"
        ),
    ]


def test_group_that_is_stopped_is_a_note_that_says_how_long_it_may_be() -> None:
    facts = Facts(
        cluster(), now=1, groups={"g.p": GroupInfo("Empty", ())}, positions={"g.p": {A0: 0}}, logs={A0: LogInfo(0, 0)}
    )
    assert shown(facts, examined()) == [
        (
            "note: g.p: it has no members: its positions are kept for 7 days after it has stopped\n"
            "  start it before, or kstreams recover export app.py:graph > FILE"
        )
    ]


def test_processor_without_a_dead_letter_topic_is_a_note_with_a_remedy() -> None:
    assert shown(Facts(cluster(), now=1), examined(errors=None)) == [
        (
            "note: p: a record for which its function raises is dropped with a warning: it has no dead-letter topic\n"
            '  declare errors="g.errors" for it or its graph, and the record is kept there'
        )
    ]


# Other clusters, to which the graph writes.


def examined_west() -> Examined:
    graph = ks.Graph("g")
    graph.map(graph.topic(A), to=graph.topic(OUT, cluster="west"), errors="dead", id="p")(bytes)
    return Examined(graph, "app.py:graph", 60_000)


def west(*topics: TopicDescription, brokers: int = 1, **changed: Any) -> Facts:
    found = {each.name: each for each in topics}
    described = ClusterDescription(dict.fromkeys(range(brokers), BROKER), found, servers="west:9092")
    return Facts(described, now=100, name="west", **changed)


DELIVERED = "__ks.g.p.delivered"


def test_other_cluster_whose_topics_are_well_has_no_finding() -> None:
    other = west(topic(OUT), topic("dead"), topic(DELIVERED, cleanup_policy="compact"))
    assert shown(Facts(cluster(topic(JOURNAL, retention_ms="-1")), now=100, others=[other]), examined_west()) == []


def test_what_is_wrong_on_another_cluster_is_found_and_names_it() -> None:
    hangs = OpenTransaction(7, 2, 0, 5, 40.0, "g.p.0", hangs=True, state="Empty")
    other = west(
        topic(OUT, max_message_bytes="10"),
        topic(DELIVERED, partition=PartitionInfo(-1, 1, 1), cleanup_policy="compact,delete"),
        found=[FoundTransaction(TopicPartition(OUT, 0), hangs, decision=CommitDecision(None, "unknown"))],
        unseen={"transactions": "grant it"},
    )
    facts = Facts(
        cluster(topic(JOURNAL, retention_ms="-1")), now=100, others=[other], away={"west": "no broker answers"}
    )
    assert shown(facts, examined_west()) == [
        (
            "error: cluster 'west': it does not answer, and is not examined: p can deliver nothing: no broker answers\n"
            "  repair it, or correct [clusters.west] in the settings"
        ),
        (
            f"error: cluster 'west': {DELIVERED}: cleanup.policy is compact,delete: the record of the newest delivery "
            f"may be deleted\n  kafka-configs.sh --bootstrap-server west:9092 --alter --topic {DELIVERED} "
            "--add-config cleanup.policy=compact"
        ),
        (
            "error: cluster 'west': out[0]: out[0]: producer 7 epoch 2 (g.p.0) from offset 5, 60 s old: its "
            "coordinator (Empty) will not end it: it never ends by itself; it hides all records after it from "
            "readers\n  kstreams transactions find-hanging --cluster west, then kstreams transactions abort --topic "
            "out --partition 0 --start-offset 5 --cluster west"
        ),
        (
            "error: cluster 'west': dead: the graph declares it, but it does not exist: no worker starts\n  kstreams "
            "topics create app.py:graph"
        ),
        (
            f"error: cluster 'west': {DELIVERED}[0]: the partition has no leader: it can be neither read nor written\n"
            f"  start the brokers that have it ({DESCRIBE.replace('kafka:', 'west:')} --unavailable-partitions)"
        ),
        (
            "note: p: out: it takes records of 10 bytes and an input has up to 1000: larger ones become dead letters, "
            "or stop the worker\n  kafka-configs.sh --bootstrap-server west:9092 --alter --topic out "
            "--add-config max.message.bytes=1000"
        ),
        "note: cluster 'west': transactions: not seen: problems there are not found\n  grant it",
    ]


def test_tasks_that_differ_only_in_their_numbers_are_one_finding_and_others_are_not() -> None:
    graph = ks.Graph("g")
    graph.map(graph.topic("in"), to=graph.topic("out"), id="p")(lambda value: value)
    plans = ["ends with InputLost: in[0] is at 5", "ends with InputLost: in[1] is at 7", "ends with InputLost: gone"]
    tasks = [TaskStatus("p", n, {}, None, "", (), plan, is_refused=True) for n, plan in enumerate(plans)]
    found = diagnose(Facts(ClusterDescription({}, {}), now=0, tasks=tasks), Examined(graph, "g.py", 1))
    assert [(each.subject, each.meaning) for each in found if each.kind == "refused_start"] == [
        ("p[0], p[1]", f"the next start {plans[0]}"),
        ("p[2]", f"the next start {plans[2]}"),
    ]
