"""A cut of a real broker's topics, read by Spark: no transaction is torn, and increments add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kstreams_py.cli.main import app
from kstreams_py.errors import InputLost, SettingsError, TopicError
from kstreams_py.formats.serdes import String
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from kstreams_py.graph.topology import Graph
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER
from kstreams_py.records import HASH_HEADER, PLACE_HEADER, Headers, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.spark import Cut, cut, read_cut, view
from kstreams_py.spark.cut_filters import is_inside
from kstreams_py.spark.cutting import Cutting
from kstreams_py.testing import TestDriver
from tests.clusters import open_cluster
from tests.system.harness import metadata
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning"
)  # collect() leaves its socket to the garbage collector

SECONDS = 60.0
"""The bound of each wait."""


class Rig:
    """Topics of a graph whose processors are played by hand: records of steps, and offsets, in any transactions."""

    def __init__(self, broker: Any, name: str, replicas: Mapping[str, list[int]] | None = None) -> None:
        """`replicas`: by topic, brokers with its partition, the leader first."""
        self.settings = Settings(bootstrap_servers=broker.bootstrap_servers)
        self.cluster = open_cluster(self.settings)
        self.names = {topic: f"{name}.{topic}" for topic in ("in", "a", "b", "c")}
        self.graph = Graph(name)
        self.topics = {
            topic: self.graph.topic(full, key=String(), value=String()) for topic, full in self.names.items()
        }
        self.graph.map(self.names["in"], to=[self.names["a"], self.names["b"]], id="split")(lambda value: {})
        self.graph.join(self.names["a"], self.names["b"], by="order", to=self.names["c"], id="pair")(lambda a, b: a)
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        new = [
            NewTopic(full, 1, replica_assignment=[replicas[topic]]) if replicas else NewTopic(full, 1, 1)
            for topic, full in self.names.items()
        ]
        for created in self.admin.create_topics(new).values():
            created.result(SECONDS)
        # the controller has answered; the brokers learn of the topics later
        for address in broker.bootstrap_servers.split(","):
            wait_until(partial(self._are_known_to, address), "the topics are known")
        self.ids = {topic: self.cluster.topics([full])[full].topic_id for topic, full in self.names.items()}
        self._producers = 0

    def _are_known_to(self, address: str) -> bool:
        """The first request of a client goes to the broker at its address; later ones may go to any."""
        return {*self.names.values()} <= {*metadata(AdminClient({"bootstrap.servers": address})).topics}

    def producer(self) -> ck.Producer:
        self._producers += 1
        configuration = {
            "bootstrap.servers": self.settings.bootstrap_servers,
            "transactional.id": f"{self.graph.name}.{self._producers}",
            "transaction.timeout.ms": 600_000,  # the first jobs of Spark may take more than the usual minute
        }
        producer = ck.Producer(configuration)
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        return producer

    def headers(self, processor: str, *inputs: str, at: int) -> Headers:
        """The headers of the step that reads the records at one offset."""
        name = f"{self.graph.name}.{processor}"
        place = hash_prefix(name, self.names[inputs[0]], self.ids[inputs[0]], 0) + pack_offset(at)
        if len(inputs) == 1:
            return [(HASH_HEADER, place)]
        digest = joined_hash(name, ((self.names[each], self.ids[each], 0, at) for each in inputs))
        return [(HASH_HEADER, digest), (PLACE_HEADER, place)]

    def write(self, producer: ck.Producer, to: str, value: str, headers: Headers | None = None) -> None:
        producer.produce(self.names[to], value, partition=0, headers=list(headers or ()))
        assert producer.flush(SECONDS) == 0

    def send(self, producer: ck.Producer, processor: str, *inputs: str, offset: int) -> None:
        """Adds the next offset of each input to the transaction."""
        group = {"bootstrap.servers": self.settings.bootstrap_servers, "group.id": f"{self.graph.name}.{processor}"}
        consumer = ck.Consumer(group)
        try:
            at = [ck.TopicPartition(self.names[each], 0, offset) for each in inputs]
            producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), SECONDS)
        finally:
            consumer.close()

    def commit(self, *producers: ck.Producer) -> None:
        for each in producers:
            each.commit_transaction(SECONDS)

    def deliver(self, offset: int) -> None:
        """A transaction of `split`, with an output to each topic."""
        producer = self.producer()
        for to in ("a", "b"):
            self.write(producer, to, str(offset), self.headers("split", "in", at=offset))
        self.send(producer, "split", "in", offset=offset + 1)
        self.commit(producer)
        self.settle_offsets()

    def settle_offsets(self) -> None:
        """Waits until no offset of `split` is pending: a commit returns before its markers are written."""
        group, read = f"{self.graph.name}.split", [TopicPartition(self.names["in"], 0)]
        wait_until(lambda: not self.cluster.group_offsets(group, read).pending, "the offsets are committed")

    def cut(self, sleep: Callable[[], None] = lambda: None) -> Cut:
        """Makes a cut; `sleep` is what happens the first time that it waits."""
        waits = iter([sleep])
        making = Cutting(self.graph, None, self.cluster, SECONDS, sleep=lambda _: next(waits, lambda: None)())
        return making.make()

    def settle(self, **visible: int) -> None:
        """Waits until the last stable offsets of these topics are at least there."""
        ends = {TopicPartition(self.names[topic], 0): end for topic, end in visible.items()}
        wait_until(
            lambda: all(self.cluster.ends(list(ends))[tp] >= end for tp, end in ends.items()), "the records are visible"
        )

    def close(self) -> None:
        self.cluster.close()


@pytest.fixture
def rig(broker: Any, topic_name: str) -> Iterator[Rig]:
    made = Rig(broker, topic_name)
    yield made
    made.close()


def values(spark: SparkSession, rig: Rig, *topics: str, start: Cut | None = None, end: Cut | None = None) -> Any:
    """The values of each topic by offset."""
    found = {}
    for topic in topics:
        df = view(spark, rig.topics[topic], settings=rig.settings, start=start, end=end)
        found[topic] = [value for _, value in sorted(map(tuple, df.select("offset", "value").collect()))]
    return found


def test_cut_shows_whole_transaction_of_late_marker_where_stable_offsets_show_half(
    spark: SparkSession, rig: Rig
) -> None:
    rig.deliver(0)
    # what a late marker leaves: a transaction that is decided for "a" and the offsets, and open on "b"
    decided, late = rig.producer(), rig.producer()
    rig.write(decided, "a", "1", rig.headers("split", "in", at=1))
    rig.write(late, "b", "1", rig.headers("split", "in", at=1))
    rig.send(decided, "split", "in", offset=2)
    rig.commit(decided)
    rig.settle_offsets()
    rig.settle(a=4, b=2)
    torn = values(spark, rig, "a", "b")
    made = rig.cut(lambda: rig.commit(late))
    assert torn == {"a": ["0", "1"], "b": ["0"]}
    assert values(spark, rig, "a", "b", end=made) == {"a": ["0", "1"], "b": ["0", "1"]}


class Releasing:
    """A cluster on which a held event is released after the first look at the offsets of the group."""

    def __init__(self, driver: TestDriver) -> None:
        self._driver, self._is_released = driver, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver.cluster, name)

    def ends(self, partitions: Any, *, committed: bool = True) -> Any:
        if not committed and not self._is_released:
            self._is_released = True
            self._driver.run()
        return self._driver.cluster.ends(partitions, committed=committed)


def test_cut_between_the_hold_and_the_release_of_an_event_tears_no_transaction(spark: SparkSession) -> None:
    graph = Graph("g", errors="g.errors")
    events = graph.topic("g.events", key=String(), value=String(), partitions=1)
    graph.ordered(events, to=graph.topic("g.states", value=String(), partitions=1), id="apply")(lambda value: value)
    with TestDriver(graph) as driver:
        for number, prev in ((1, None), (3, 2), (2, 1)):  # 3 waits for 2, and its offset is committed
            headers: list[tuple[str, bytes | None]] = [(ID_HEADER, b"%d" % number)]
            headers += [] if prev is None else [(PREV_HEADER, b"%d" % prev)]
            if number == 2:
                driver.run()
            driver.send("g.events", f"{number}", key="a", headers=headers)
        cluster: Any = Releasing(driver)
        cutting = Cutting(graph, ["g.states"], cluster, SECONDS, clock=driver.clock, sleep=driver.clock.advance)
        cuts = [cutting.make() for _ in range(2)]
        rows = [
            f"(X'{(m.value() or b'').hex()}', {literal(m.headers() or [])}, 0, {m.offset()}L)"
            for m in driver.cluster.read(TopicPartition("g.states", 0))
        ]
    names = "(value, headers, partition, offset)"
    df = spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS given{names}")
    found = [
        [bytes(row["value"]) for row in df.where(is_inside(each, "g.states")).orderBy("offset").collect()]
        for each in cuts
    ]
    assert found == [[b"1"], [b"1", b"2", b"3"]]


def literal(headers: Headers) -> str:
    """As SQL: a data frame of Python's rows starts processes of Python, which cost more than the queries."""
    parts = (f"struct('{name}' AS key, X'{(value or b'').hex()}' AS value)" for name, value in headers)
    return f"array({', '.join(parts)})"


def test_cut_waits_for_offsets_whose_marker_is_late(spark: SparkSession, rig: Rig) -> None:
    rig.deliver(0)
    decided, late = rig.producer(), rig.producer()
    for to in ("a", "b"):
        rig.write(decided, to, "1", rig.headers("split", "in", at=1))
    rig.send(late, "split", "in", offset=2)
    rig.commit(decided)
    rig.settle(a=4, b=4)
    made = rig.cut(lambda: rig.commit(late))
    assert made.writers[1].inputs[0].offsets == (2,)
    assert values(spark, rig, "a", "b", end=made) == {"a": ["0", "1"], "b": ["0", "1"]}


def test_transaction_beyond_a_cut_is_in_the_next_increment_of_each_topic_once(spark: SparkSession, rig: Rig) -> None:
    rig.deliver(0)
    rig.write(outsider := rig.producer(), "a", "sent by others")
    rig.commit(outsider)
    open_one, joined = rig.producer(), rig.producer()
    rig.write(open_one, "a", "1", rig.headers("split", "in", at=1))
    rig.write(joined, "c", "0", rig.headers("pair", "a", "b", at=0))

    def commit() -> None:
        rig.write(open_one, "b", "1", rig.headers("split", "in", at=1))
        rig.send(open_one, "split", "in", offset=2)
        rig.send(joined, "pair", "a", "b", offset=1)
        rig.commit(open_one, joined)

    first = rig.cut(commit)
    rig.deliver(2)
    rig.settle(c=2)
    second = rig.cut()
    assert values(spark, rig, "a", "b", "c") == {
        "a": ["0", "sent by others", "1", "2"], "b": ["0", "1", "2"], "c": ["0"]
    }  # fmt: skip
    assert values(spark, rig, "a", "b", "c", end=first) == {"a": ["0", "sent by others"], "b": ["0"], "c": []}
    assert values(spark, rig, "a", "b", "c", start=first, end=second) == {"a": ["1", "2"], "b": ["1", "2"], "c": ["0"]}
    df = view(spark, rig.topics["a"], settings=rig.settings, start=first, end=second)
    plan = df._jdf.queryExecution().executedPlan().toString()
    assert ("ks-hash" in plan.partition("Filter")[2], "Python" in plan) == (True, False)
    assert values(spark, rig, "a", "b", "c", start=second, end=rig.cut()) == {"a": [], "b": [], "c": []}


def test_cut_of_the_command_is_the_same_after_partitions_were_added(
    spark: SparkSession, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.deliver(0)
    (tmp_path / "by_hand.py").write_text(
        f"import kstreams_py as ks\ngraph = ks.Graph({rig.graph.name!r})\n"
        f"[graph.topic(name) for name in {list(rig.names.values())!r}]\n"
        f"graph.map({rig.names['in']!r}, to=[{rig.names['a']!r}, {rig.names['b']!r}], id='split')(lambda value: {{}})\n"
    )
    monkeypatch.chdir(tmp_path)
    where = ["--topic", rig.names["a"], "-b", rig.settings.bootstrap_servers]
    ran = CliRunner().invoke(app, ["cut", "by_hand.py", *where, "-o", "c.json"], catch_exceptions=False)
    printed = CliRunner().invoke(app, ["cut", "by_hand.py", *where], catch_exceptions=False)
    made = read_cut("c.json")
    assert (ran.exit_code, ran.output, Cut.decode(printed.stdout, "stdout")) == (0, "", made)
    rig.admin.create_partitions([NewPartitions(rig.names["a"], 2)])[rig.names["a"]].result(SECONDS)
    name = rig.names["a"]
    wait_until(lambda: rig.cluster.topics([name])[name].partitions == 2, "the topic has the new partition")
    assert values(spark, rig, "a", end=made) == {"a": ["0"]}
    grown = cut(rig.graph, [name], settings=rig.settings)
    assert values(spark, rig, "a", start=made, end=grown) == {"a": []}


def test_view_at_a_cut_whose_records_or_topic_are_gone_stops_with_the_reason(spark: SparkSession, rig: Rig) -> None:
    rig.deliver(0)
    made = rig.cut()
    with pytest.raises(SettingsError, match="start is a cut, but end is not: make a later cut, and give it as end"):
        view(spark, rig.topics["a"], settings=rig.settings, start=made)
    with pytest.raises(SettingsError, match="end is a cut, but start='earliest' is not: leave start out"):
        view(spark, rig.topics["a"], settings=rig.settings, start="earliest", end=made)
    rig.cluster.truncate(TopicPartition(rig.names["a"], 0), 1)
    with pytest.raises(InputLost, match=r"a\[0\]: the records from offset 0 to 0 were deleted since the cut"):
        view(spark, rig.topics["a"], settings=rig.settings, end=made)
    other = Cut(made.graph, {rig.names["b"]: made.topics[rig.names["a"]]}, ())
    with pytest.raises(TopicError, match="was deleted and created again since the cut: make a new cut"):
        view(spark, rig.topics["b"], settings=rig.settings, end=other)
