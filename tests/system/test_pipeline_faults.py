"""Pipelines while transactions are half visible, and while the workers that write their topics die."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kstreams_py as ks
from kstreams_py.graph.loading import load
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.records import TopicPartition
from kstreams_py.spark import Cut, cutting
from kstreams_py.spark.cuts import CutTopic, Span
from kstreams_py.spark.cutting import Cutting
from kstreams_py.spark.pipelines import driver, runner
from kstreams_py.spark.pipelines.runs import PipelineRun
from tests.clusters import open_cluster
from tests.system.harness import WorkerProcess
from tests.system.recorder import Record, Recorder
from tests.system.shop import read_files
from tests.system.test_cuts import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()


def read(target: ks.Parquet) -> list[tuple[Any, ...]]:
    """The published rows, read without Spark."""
    return read_files(target.files())


# A transaction whose markers are late on one of its topics.


class Halves:
    """A pipeline over both outputs of a transaction, with its steps played by hand."""

    def __init__(self, rig: Rig, spark: SparkSession, mode: str, directory: Path) -> None:
        self.rig, self._spark, self.target = rig, spark, ks.Parquet(directory / "both")

        def both(a: DataFrame, b: DataFrame) -> DataFrame:
            sides = [df.select(sf.lit(side).alias("topic"), "value") for side, df in (("a", a), ("b", b))]
            return sides[0].union(sides[1])

        names = rig.names["a"], rig.names["b"]
        rig.graph.pipeline(*names, to=self.target, mode=mode, key=[] if mode == "append" else ["topic", "value"])(both)

    def run(self) -> list[tuple[Any, ...]]:
        runner.run_once(self.rig.graph.pipelines[0], self.rig.graph, self._spark, self.rig.settings)
        return read(self.target)

    def decide_half(self) -> Callable[[], None]:
        """Leaves what a late marker leaves: step 1 is decided on "a" and of its offsets, and open on "b".

        Returns what writes the late marker.
        """
        rig = self.rig
        rig.deliver(0)
        self.run()
        decided, late = rig.producer(), rig.producer()
        rig.write(decided, "a", "1", rig.headers("split", "in", at=1))
        rig.write(late, "b", "1", rig.headers("split", "in", at=1))
        rig.send(decided, "split", "in", offset=2)
        rig.commit(decided)
        rig.settle_offsets()
        rig.settle(a=4, b=2)
        return lambda: rig.commit(late)


@pytest.fixture
def rig(broker: Any, topic_name: str) -> Iterator[Rig]:
    made = Rig(broker, topic_name)
    yield made
    made.close()


FIRST: Final = [("a", "0"), ("b", "0")]
WHOLE: Final = [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]


@pytest.mark.long  # quick are a cut that waits, in test_cuts, and, by the mutation below, that a run reads its cut
@pytest.mark.parametrize("mode", ["append", "complete", "upsert"])
def test_table_has_the_whole_transaction_whose_marker_is_late_or_nothing_of_it(
    spark: SparkSession, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    halves = Halves(rig, spark, mode, tmp_path)
    write_marker = halves.decide_half()
    seen: list[Any] = []

    def wait(_: float) -> None:
        if not seen:
            seen.append(read(halves.target))
            write_marker()

    monkeypatch.setattr(cutting, "Cutting", partial(Cutting, sleep=wait))
    assert (halves.run(), seen) == (WHOLE, [FIRST])


def cut_by_stable_offsets(graph: ks.Graph, names: Sequence[str], *, settings: ks.Settings) -> Cut:
    """The mutation: what lies below the last stable offsets is inside."""
    cluster = open_cluster(settings)
    try:
        spans = {
            name: CutTopic(
                info.topic_id,
                tuple(
                    Span(cluster.starts([tp])[tp], end, end)
                    for tp, end in sorted(
                        cluster.ends([TopicPartition(name, n) for n in range(info.partitions)]).items()
                    )
                ),
            )
            for name, info in cluster.topics(names).items()
        }
        return Cut(graph.name, spans, ())
    finally:
        cluster.close()


@pytest.mark.parametrize(
    "mode", ["append", *(pytest.param(each, marks=pytest.mark.long) for each in ("complete", "upsert"))]
)
def test_mutation_that_cuts_by_last_stable_offsets_publishes_half_of_a_transaction(
    spark: SparkSession, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Quick is the mode that adds what is between two cuts: the others read up to one of the same cuts."""
    monkeypatch.setattr(runner, "cut", cut_by_stable_offsets)
    halves = Halves(rig, spark, mode, tmp_path)
    write_marker = halves.decide_half()
    torn = halves.run()
    write_marker()
    rig.settle(b=4)
    assert (torn, halves.run()) == ([("a", "0"), ("a", "1"), ("b", "0")], WHOLE)


# Workers that are killed while pipelines run.

PROCESSORS: Final = """
from pyspark.sql import functions as sf

import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
source, left, right = [graph.topic(f"{name}.{{topic}}", value=ks.String()) for topic in ("in", "left", "right")]


@graph.map(source, to=[left, right])
def split(value):
    return {{left: value, right: value}}


def sides(left, right):
    both = [df.select(sf.lit(side).alias("side"), "value") for side, df in (("left", left), ("right", right))]
    return both[0].union(both[1])


def find_last(left, right):
    key, number = sf.split_part("value", sf.lit("-"), sf.lit(1)), sf.split_part("value", sf.lit("-"), sf.lit(2))
    rows = sides(left, right).select("side", key.alias("key"), number.cast("int").alias("number"))
    return rows.groupBy("side", "key").agg(sf.max("number").alias("number"))
"""

BATCHES: Final = """

@graph.pipeline(left, right, to=ks.Parquet({directory!r} + "/counts"), key=["side"], every="1 second")
def counts(left, right):
    rows = sides(left, right)
    return rows.groupBy("side").agg(sf.count("*").alias("records"), sf.countDistinct("value").alias("different"))


@graph.pipeline(left, right, to=ks.Parquet({directory!r} + "/each"), mode="append", every="1 second")
def each(left, right):
    return sides(left, right)


graph.pipeline(
    left, right, to=ks.Parquet({directory!r} + "/last"), id="last", mode="upsert", key=["side", "key"], every="1 second"
)(find_last)
"""

STREAMS: Final = """

options = {{"every": "1 second", "streaming": True}}


@graph.pipeline(left, right, to=ks.Parquet({directory!r} + "/counts"), key=["side"], **options)
def counts(left, right):
    return sides(left, right).groupBy("side").agg(sf.count("*").alias("records"))


@graph.pipeline(left, right, to=ks.Parquet({directory!r} + "/each"), mode="append", **options)
def each(left, right):
    return sides(left, right)


graph.pipeline(
    left, right, to=ks.Parquet({directory!r} + "/last"), id="last", mode="upsert", key=["side", "key"], **options
)(find_last)
"""

PARTITIONS: Final = 4
SLOTS: Final = (0, 1)
KEYS: Final = 20


class Site:
    """A fork that writes each record to two topics, its worker processes, and pipelines over both topics."""

    def __init__(self, directory: Path, name: str, settings: ks.Settings, cleanup: ExitStack, pipelines: str) -> None:
        """`pipelines`: BATCHES or STREAMS."""
        self.settings, self.recorder = settings, cleanup.enter_context(closing(Recorder(settings.bootstrap_servers)))
        self.topics = [f"{name}.{topic}" for topic in ("in", "left", "right")]
        self.recorder.cluster.create(*self.topics, partitions=PARTITIONS)
        self.recorder.cluster.create(f"{name}.errors")
        self.file = directory / "forked.py"
        self.file.write_text((PROCESSORS + pipelines).format(name=name, directory=str(directory)))
        self.graph = load(f"{self.file}:graph")
        self.workers: dict[int, WorkerProcess] = {}
        self.published: Counter[str] = Counter()
        """By pipeline: the runs that were published."""
        self._cleanup = cleanup

    def record(self, number: int) -> Record:
        """Record n is `key-n`."""
        key = b"%d" % (number % KEYS)
        return self.topics[0], b"%s-%d" % (key, number), key, -1

    def start(self, *slots: int) -> None:
        for slot in slots:
            self.workers[slot] = worker = WorkerProcess(self.file, slot, self.settings.as_environment())
            self._cleanup.callback(worker.kill)

    def kill(self, slot: int) -> None:
        worker = self.workers.pop(slot)
        worker.send(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL, worker.text

    def finish(self) -> None:
        """Ends the workers once they have processed all."""
        self.recorder.await_done(f"{self.graph.name}.split", self.topics[0])
        for worker in self.workers.values():
            wait_until(lambda: ": holds " in worker.text, "the worker handles SIGTERM")  # noqa: B023
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in self.workers.values()] == [0] * len(SLOTS)

    def sides(self, pipeline: Pipeline) -> list[list[Any]]:
        """The rows of the left and of the right side."""
        assert isinstance(pipeline.target, ks.Parquet)
        rows = read(pipeline.target)
        return [[row for side, *row in rows if side == name] for name in ("left", "right")]

    def run(self, pipeline: Pipeline, spark: SparkSession) -> None:
        """Runs the pipeline; each version of its table has as much of the left side as of the right."""
        made = runner.run_once(pipeline, self.graph, spark, self.settings)
        self.published[pipeline.id] += made is not None
        left, right = self.sides(pipeline)
        assert left == right, (pipeline.id, made)

    def kill_workers(self, follow: Callable[[Callable[[], bool]], None], kills: int, seed: int) -> list[str]:
        """Kills workers at random, with a run published between two kills, while pipelines run; returns the values.

        - `follow`: runs the pipelines until its argument returns True, and counts in `published`.
        """
        chance, stop = random.Random(seed), Event()
        pool = self._cleanup.enter_context(ThreadPoolExecutor(1))
        self._cleanup.callback(stop.set)  # before the pool waits for its thread
        with self.recorder.reading(*self.topics[1:]) as reader:
            with self.recorder.feeding(self.record, at_once=100, per_second=200) as feeder:
                self.start(*SLOTS)
                reader.await_more(10)
                following = pool.submit(follow, stop.is_set)
                for _ in range(kills):
                    published, slot = self.published.total(), chance.choice(SLOTS)
                    reader.await_more(chance.randrange(1, 300))
                    wait_until(lambda: following.done() or self.published.total() > published, "a run is published")  # noqa: B023
                    self.kill(slot)
                    self.start(slot)
            self.finish()
            reader.finish()
        stop.set()
        following.result()
        return [self.record(number)[1].decode() for number in range(feeder.written)]

    def tables(self) -> dict[str, list[list[Any]]]:
        """By pipeline, the rows of the left and of the right side."""
        return {pipeline.id: self.sides(pipeline) for pipeline in self.graph.pipelines}


def last_of_each_key(values: Sequence[str]) -> list[list[Any]]:
    """The rows of `find_last`, of one side."""
    last = {key: number for key, _, number in (value.partition("-") for value in values)}
    return sorted([key, int(number)] for key, number in last.items())


@pytest.mark.long
@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 6), pytest.param(60, 2, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_tables_tear_no_transaction_of_workers_that_are_killed(
    tmp_path: Path, name: str, settings: Callable[..., ks.Settings], spark: SparkSession, kills: int, seed: int
) -> None:
    with ExitStack() as cleanup:
        site = Site(tmp_path, name, settings(), cleanup, BATCHES)
        run = partial(site.run, spark=spark)
        values = site.kill_workers(partial(runner.follow, site.graph.pipelines, run), kills, seed)
        for pipeline in site.graph.pipelines:
            run(pipeline)
    assert site.tables() == {
        "counts": [[[len(values), len(values)]]] * 2,
        "each": [[[value] for value in sorted(values)]] * 2,
        "last": [last_of_each_key(values)] * 2,
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("kills", "seed"), [(2, 6), pytest.param(40, 4, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_tables_of_streams_equal_the_model_when_the_workers_before_them_are_killed(
    tmp_path: Path, name: str, settings: Callable[..., ks.Settings], spark: SparkSession, kills: int, seed: int
) -> None:
    with ExitStack() as cleanup:
        site = Site(tmp_path, name, settings(), cleanup, STREAMS)
        arguments = site.graph.pipelines, site.graph, spark, site.settings

        def show(pipeline: Pipeline, run: PipelineRun | None) -> None:
            site.published[pipeline.id] += run is not None

        values = site.kill_workers(partial(driver.follow_all, *arguments, show), kills, seed)
        driver.run_all(*arguments, show, None)
    assert site.tables() == {
        "counts": [[[len(values)]]] * 2,
        "each": [[[value] for value in sorted(values)]] * 2,
        "last": [last_of_each_key(values)] * 2,
    }
