"""processing/beginning.py: the offsets at which a group begins, and InputLost if they no longer exist."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import Any

import pytest

from kstreams_py.errors import Abortable, InputLost, OutcomeUnknown
from kstreams_py.graph.declarations import State
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.topology import Graph
from kstreams_py.metrics import Counters
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.commits.committer import Committer, Context
from kstreams_py.processing.commits.guarantees import COMMITTERS
from kstreams_py.processing.tasks.ledger import Ledger
from kstreams_py.processing.topics import BEGINNINGS_SETTINGS
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry

A0, A1, A2, A3 = (TopicPartition("a", number) for number in range(4))
B0, B1 = (TopicPartition("b", number) for number in range(2))
TOPIC = "__ks.g.beginnings"


class Crash(BaseException):
    """The process dies here."""


class Group:
    """A cluster with topics a (4 records in each partition) and b, on which workers begin one after another."""

    def __init__(self, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, partitions: int = 2) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock)
        self.graph = Graph("g", guarantee=guarantee)
        for name in "ab":
            self.graph.topic(name)
        self.graph.sink("a", "b", id="p", alts=True)(lambda value: None)
        (self.processor,) = self.graph.processors
        self.cluster.create_topics(
            [("a", partitions, -1, {}), ("b", partitions, -1, {}), (TOPIC, 1, -1, BEGINNINGS_SETTINGS)]
        )
        for number in range(partitions):
            self.fill(number)

    def fill(self, partition: int) -> None:
        for _ in range(4):
            self.cluster.append("a", b"v", partition=partition)

    def process(self, reset: str = "earliest") -> tuple[Beginning, Committer]:
        """The beginning and the committer of a new worker, with the topics as they are now."""
        settings = Settings(auto_offset_reset=reset)  # type: ignore[arg-type]
        environment = Environment(self.cluster, MemoryRegistry(), settings, self.clock, self.clock.advance)
        consumer = self.cluster.consumer("g.p", "g.p.0")
        consumer.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
        consumer.consume(1, 0.0)
        committer = COMMITTERS[self.processor.guarantee](
            Context(self.processor, Ledger(), consumer, environment, "g.p.0", Counters(), lambda *_: None)
        )
        committer.session.start()
        inputs = self.cluster.topics([topic.name for topic in self.processor.inputs])
        return Beginning(environment, self.graph, self.processor, inputs), committer

    def begin(self, partitions: Collection[TopicPartition], reset: str = "earliest") -> Positions:
        """Begins in a new process."""
        beginning, committer = self.process(reset)
        return beginning.start(partitions, committer)

    @property
    def saved(self) -> Positions:
        return self.cluster.groups["g.p"]

    def topic_id(self, topic: str) -> str:
        return self.cluster.topics([topic])[topic].topic_id

    @property
    def recorded(self) -> list[tuple[Any, Any]]:
        """Keys and values of the records of begun partitions; "id of a" stands for the id of topic a."""
        return [(key, value) for key, value in self.all_recorded if "start" not in value]

    @property
    def all_recorded(self) -> list[tuple[Any, Any]]:
        """As `recorded`, with the records that name a start."""
        names = {self.topic_id(topic): f"id of {topic}" for topic in "ab"}
        found = []
        for m in self.cluster.records(TOPIC):
            processor, topic, topic_id, *rest = json.loads(m.key() or b"")
            found.append(([processor, topic, names.get(topic_id, topic_id), *rest], json.loads(m.value() or b"")))
        return found


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize(("reset", "at"), [("earliest", 1), ("latest", 4)])
def test_group_begins_at_auto_offset_reset_and_records_each_partition(
    reset: str, at: int, guarantee: Guarantee
) -> None:
    group = Group(guarantee)
    group.cluster.truncate(A0, 1)
    group.cluster.truncate(A1, 1)
    starts = {A0: at, A1: at, B0: 0}
    assert (group.begin({A1, A0, B0}, reset), group.saved) == (starts, starts)
    assert sorted(group.recorded) == [
        (["p", "a", "id of a", 0], {"partitions": 2}),
        (["p", "a", "id of a", 1], {"partitions": 2}),
        (["p", "b", "id of b", 0], {"partitions": 2}),
    ]


def test_begin_at_the_start_makes_one_request_for_start_offsets() -> None:
    group = Group()
    before = len(group.cluster.faults.requests)
    group.begin({A0})
    assert group.cluster.faults.requests[before:].count("starts") == 1


def test_processor_that_begins_with_what_one_of_another_name_has_read_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("WARNING")
    group = Group()
    group.begin({A0, A1, B0}, "latest")
    group.graph = Graph("g")
    group.graph.sink(group.graph.topic("a"), group.graph.topic("b"), id="q", alts=True)(lambda value: None)
    (group.processor,) = group.graph.processors
    monkeypatch.setattr(sys.modules[__name__], "q", group.graph, raising=False)
    before = len(group.cluster.faults.requests)
    group.begin({A0, B0})
    assert group.cluster.faults.requests[before:].count("read") == 1, "the records of beginnings are read anyway"
    group.begin({A1})
    (warning,) = caplog.messages
    assert warning == (
        "q: begins to read a, b, which the undeclared processor 'p' has read: if this is its new "
        "name, stop it, and give it the id 'p' back, or the positions of group g.p (`kstreams recover reset "
        "tests.unit.test_beginning q --to-offset a:0:4 --to-offset a:1:4 --to-offset b:0:0`)"
    )


def test_processor_with_other_inputs_or_a_state_is_not_taken_for_one_that_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING")
    group = Group()
    group.begin({A0, A1, B0})
    group.graph = graph = Graph("g")
    for name in "abx":
        graph.topic(name)
    graph.sink("a", id="one")(lambda value: None)
    graph.alts("a", "b", to="x", id="counted", state=State("counts"))(lambda value, state: None)
    for processor in graph.processors:
        group.processor = processor
        group.begin({A0})
    assert caplog.messages == []


@pytest.mark.parametrize("again", [False, True])
def test_processor_beside_others_or_on_a_topic_created_again_is_not_warned_of(
    again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    group = Group()
    group.begin({A0})
    if again:
        group.graph = Graph("g")
        group.cluster._broker.delete_topic("a")
        group.cluster.create_topics([("a", 2, -1, {})])
    group.graph.sink(group.graph.topic("a"), group.graph.topic("b"), id="q", alts=True)(lambda value: None)
    group.processor = group.graph.processors[-1]
    group.begin({A0, A1})
    assert caplog.messages == []


def test_begin_logs_its_offsets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Group().begin({A1, A0}, "latest")
    assert "p: begins at a[0]@4, a[1]@4" in caplog.text


@pytest.mark.parametrize("guarantee", Guarantee)
def test_group_whose_committed_offsets_have_expired_raises_input_lost(
    guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(guarantee)
    group.begin({A0, A1, B0})
    group.cluster._broker.group("g.p").positions.clear()  # offsets.retention.minutes
    for minutes, shown in ((10_080, "10080"), (None, "not known")):
        monkeypatch.setattr(group.cluster, "offsets_retention_minutes", lambda minutes=minutes: minutes)
        with pytest.raises(InputLost) as caught:
            group.begin({A1, A0, B1})
        assert str(caught.value) == (
            "p: a[0], a[1] was read before, and its committed offset no longer exists: Kafka keeps the offsets of "
            f"a stopped group for offsets.retention.minutes ({shown}): decide where it goes on, and set it once the "
            "group has no members (`kstreams recover reset`, or --to-end, or --to-offset for some partitions), then "
            "start again"
        )
    assert group.saved == {}


def test_partition_begins_whatever_other_processors_and_topics_have_begun() -> None:
    """Another processor of the graph, another topic, or an older topic of the same name."""
    group = Group()
    keys = ["q", "a", group.topic_id("a"), 0], ["p", "b", group.topic_id("b"), 0], ["p", "a", "an older topic", 0]
    for begun in keys:
        group.cluster.append(TOPIC, b'{"partitions": 2}', json.dumps(begun).encode())
    assert group.begin({A0}) == {A0: 0}


def test_topic_that_was_created_again_is_begun_again() -> None:
    group = Group()
    group.begin({A0, A1})
    del group.cluster._broker.topics["a"]
    group.cluster.create_topics([("a", 2, -1, {})])
    group.cluster._broker.group("g.p").positions.clear()
    assert group.begin({A0, A1}) == {A0: 0, A1: 0}


@pytest.mark.parametrize("joins", [True, False], ids=["joins", "runs"])
def test_partition_added_while_the_worker_joins_or_runs_is_read_from_its_start(joins: bool) -> None:
    """Its first records may be older than the worker's knowledge of the partition."""
    group = Group()
    beginning, committer = group.process("latest")
    if not joins:
        assert beginning.start({A0, A1}, committer) == {A0: 4, A1: 4}
    group.cluster.grow("a", 3)
    group.fill(2)
    starts = {A0: 4, A1: 4, A2: 0}
    assert beginning.start(starts.keys() if joins else {A2}, committer) == (starts if joins else {A2: 0})
    assert group.saved == starts


def test_partition_that_was_added_since_the_group_began_is_read_from_its_start() -> None:
    group = Group()
    group.begin({A0, A1}, "latest")
    group.cluster.grow("a", 4)
    for number in (2, 3):
        group.fill(number)
    assert group.begin({A2}, "latest") == {A2: 0}  # in a new process
    assert group.begin({A3}, "latest") == {A3: 0}
    assert [value["partitions"] for key, value in group.recorded] == [2, 2, 4, 4]


def test_partition_that_was_there_when_the_group_began_is_read_from_its_end() -> None:
    """Another worker of the group began the other partitions."""
    group = Group(partitions=4)
    group.begin({A0, A1}, "latest")
    assert group.begin({A2, A3}, "latest") == {A2: 4, A3: 4}


def test_partition_count_recorded_for_another_topic_is_ignored() -> None:
    group = Group()
    group.begin({B0, B1}, "latest")
    group.cluster.grow("a", 4)
    group.fill(3)
    assert group.begin({A3}, "latest") == {A3: 4}  # topic a is new to the processor


@pytest.mark.parametrize("error", [Abortable("refused"), OutcomeUnknown("no answer")])
@pytest.mark.parametrize("request_name", ["send_offsets", "commit_transaction"])
def test_begin_that_fails_commits_nothing_and_is_repeated(request_name: str, error: Exception) -> None:
    group = Group()
    beginning, committer = group.process()
    group.cluster.faults.inject(request_name, error=error, applied=False)
    with pytest.raises(type(error)) as caught:
        beginning.start({A0}, committer)
    committer.recover(caught.value)  # type: ignore[arg-type]
    assert (group.saved, group.recorded) == ({}, [])
    assert beginning.start({A0}, committer) == {A0: 0}
    assert (group.saved, group.recorded) == ({A0: 0}, [(["p", "a", "id of a", 0], {"partitions": 2})])


# Without transactions a process can die between the offset and its record.


def die_at_commit(group: Group, beginning: Beginning, committer: Committer, *, applied: bool = False) -> None:
    """Begins partition 0 of a, and dies as the offsets are committed."""
    group.cluster.faults.inject("commit", error=Crash("dies"), applied=applied)
    with pytest.raises(Crash):
        beginning.start({A0}, committer)


without_transactions = pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])


@without_transactions
def test_start_is_named_before_its_offset_is_committed(guarantee: Guarantee) -> None:
    group = Group(guarantee)
    die_at_commit(group, *group.process())
    named = ["p start", "a", "id of a", 0], {"partitions": 0, "start": 0, "policy": "earliest"}
    assert (group.saved, group.all_recorded) == ({}, [named])


@without_transactions
@pytest.mark.parametrize(("deleted", "at"), [(0, 4), (6, 6)])
def test_group_that_died_before_it_was_recorded_begins_where_it_would_have(
    guarantee: Guarantee, deleted: int, at: int
) -> None:
    """With `latest`: at the end of that time, not of today's; or at the first record that is left."""
    group = Group(guarantee)
    die_at_commit(group, *group.process("latest"), applied=True)
    assert group.saved == {A0: 4}
    group.cluster._broker.group("g.p").positions.clear()  # offsets.retention.minutes
    group.fill(0)
    group.cluster.truncate(A0, deleted)
    assert group.begin({A0}, "latest") == {A0: at}
    assert group.recorded == [(["p", "a", "id of a", 0], {"partitions": 2})]


@without_transactions
@pytest.mark.parametrize(
    ("policies", "at"),
    [
        (("latest", "earliest"), 0),
        (("earliest", "latest"), 8),
        (("latest", "earliest", "latest"), 8),  # the newest name counts, as after compaction
        (("latest", "latest"), 4),
    ],
)
def test_start_that_was_named_under_another_auto_offset_reset_is_not_used(
    guarantee: Guarantee, policies: tuple[str, ...], at: int
) -> None:
    group = Group(guarantee)
    for policy in policies[:-1]:
        die_at_commit(group, *group.process(policy))
    group.fill(0)
    assert group.begin({A0}, policies[-1]) == {A0: at}


@pytest.mark.parametrize("guarantee", Guarantee)
def test_start_whose_commit_failed_begins_in_the_same_process_where_it_would_have(
    guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    """With `latest`: not after the records that came while the commit was refused."""
    caplog.set_level("INFO")
    group = Group(guarantee)
    beginning, committer = group.process("latest")
    request = "commit_transaction" if guarantee is Guarantee.EXACTLY_ONCE else "commit"
    group.cluster.faults.inject(request, error=Abortable("refused"), applied=False)
    with pytest.raises(Abortable) as caught:
        beginning.start({A0}, committer)
    committer.recover(caught.value)
    group.fill(0)
    assert beginning.start({A0, A1}, committer) == {A0: 4, A1: 4}
    assert "p: begins at a[0]@4 as an earlier start had named, a[1]@4" in caplog.text


@without_transactions
def test_start_named_late_by_a_zombie_does_not_hide_that_the_partition_is_begun(guarantee: Guarantee) -> None:
    group = Group(guarantee)
    zombie, committer = group.process()
    zombie.read()  # then it is frozen
    group.begin({A0})
    die_at_commit(group, zombie, committer)
    assert [key for key, _ in group.all_recorded][-1] == ["p start", "a", "id of a", 0]
    group.cluster._broker.group("g.p").positions.clear()
    with pytest.raises(InputLost, match=r"a\[0\] was read before"):
        group.begin({A0})


@without_transactions
def test_start_is_named_in_the_form_that_older_releases_read(guarantee: Guarantee) -> None:
    """They take each key of four for a partition that is begun, and each value for its `partitions`."""
    group = Group(guarantee)
    group.begin({A0, A1})
    for m in group.cluster.records(TOPIC):
        key, value = json.loads(m.key() or b""), json.loads(m.value() or b"")
        assert (len(key), [type(each) for each in key], type(value["partitions"])) == (4, [str, str, str, int], int)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'["p", "a", "%s", 0, "start"]', b'{"start": 2}'),
        (b'["p", "a", "%s", 0]', b'{"begun": true}'),
        (b'["p", "a", "%s", 0]', b"[]"),
        (b'["p", "a", "%s", 0]', None),
        (b'{"processor": "p", "topic_id": "%s"}', b'{"partitions": 2}'),
        (b"\xff%s", b"\xff"),
    ],
)
def test_records_of_other_releases_are_passed_over(key: bytes, value: bytes | None) -> None:
    group = Group()
    group.cluster.append(TOPIC, value, key.replace(b"%s", group.topic_id("a").encode()))
    assert group.begin({A0}) == {A0: 0}
    with pytest.raises(InputLost, match=r"a\[0\] was read before"):
        group.begin({A0})


# Offsets that an operator committed.


@pytest.mark.parametrize("guarantee", Guarantee)
def test_partitions_whose_offsets_an_operator_committed_are_recorded_alone(guarantee: Guarantee) -> None:
    group = Group(guarantee)
    beginning, committer = group.process()
    beginning.record_missing({A1, A0}, committer)
    assert group.recorded == [(["p", "a", "id of a", number], {"partitions": 2}) for number in (0, 1)]
    assert group.saved == {}
    with pytest.raises(InputLost, match=r"a\[0\], a\[1\] was read before"):
        group.begin({A0, A1})


def test_partitions_are_recorded_once_in_a_process_as_they_are_assigned() -> None:
    group = Group()
    beginning, committer = group.process()
    beginning.start({A0}, committer)
    for partitions in ({A0}, {A0, A1}, {A0, A1}, {B0}):
        beginning.record_missing(partitions, committer)
    assert [key[1:] for key, _ in group.recorded] == [
        ["a", "id of a", 0], ["a", "id of a", 1], ["b", "id of b", 0],
    ]  # fmt: skip
    before = len(group.cluster.faults.requests)
    beginning.record_missing({A0, A1, B0}, committer)
    assert group.cluster.faults.requests[before:] == []


def test_partitions_that_are_recorded_are_not_recorded_by_another_process() -> None:
    group = Group()
    group.begin({A0, A1})
    beginning, committer = group.process()
    before = len(group.cluster.faults.requests)
    beginning.record_missing({A0, A1}, committer)
    assert (group.cluster.faults.requests[before:], len(group.recorded)) == (["read"], 2)


def test_partitions_whose_record_was_not_written_are_recorded_by_the_next_rewind() -> None:
    group = Group()
    beginning, committer = group.process()
    group.cluster.faults.inject("commit_transaction", error=Abortable("refused"), applied=False)
    with pytest.raises(Abortable) as caught:
        beginning.record_missing({A0}, committer)
    committer.recover(caught.value)
    assert group.recorded == []
    beginning.record_missing({A0}, committer)
    assert group.recorded == [(["p", "a", "id of a", 0], {"partitions": 2})]
