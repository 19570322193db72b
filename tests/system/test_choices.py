"""The saved choices of an alts whose inputs have changed since: the alts does not wait for records that never come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import confluent_kafka as ck
import pytest

import kstreams_py as ks
from kstreams_py import Settings
from tests.system.app import MakeSettings
from tests.system.harness import Cluster, running, wait_until


class Merge:
    """An alts from up to three topics to one, deployed with a choice of inputs."""

    def __init__(self, cluster: Cluster, name: str, settings: Settings) -> None:
        self.cluster, self.name, self.settings = cluster, name, settings
        self.target = f"{name}.out"
        self.written: list[bytes] = []
        cluster.create(*(f"{name}.{end}" for end in "abc"), self.target)

    def write(self, end: str, count: int) -> None:
        first = len(self.written)
        values = [f"{end}{first + number}".encode() for number in range(count)]
        self.written += values
        self.cluster.write(f"{self.name}.{end}", values)

    def await_all(self, ends: str, before: Sequence[Callable[[], None]] = ()) -> None:
        """Deploys the alts with these inputs until the output has every record ever written, each of them once."""
        graph = ks.Graph(self.name)
        graph.alts(*(graph.topic(f"{self.name}.{end}") for end in ends), to=graph.topic(self.target), id="merge")(same)
        with running(graph, self.settings):
            for act in before:
                act()
                self._await_written()
            self._await_written()
        assert sorted(value or b"" for value in self.cluster.values(self.target)) == sorted(self.written)

    def _await_written(self) -> None:
        wait_until(lambda: len(self.cluster.values(self.target)) >= len(self.written), f"{len(self.written)} outputs")

    def recreate(self, end: str) -> None:
        topic = f"{self.name}.{end}"
        self.cluster.delete(topic)
        self.cluster.create(topic)


def same(value: bytes) -> bytes:
    return value


@pytest.fixture
def merge(cluster: Cluster, name: str, settings: MakeSettings) -> Merge:
    return Merge(cluster, name, settings())


def find_dropped_choices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return sorted({r.getMessage() for r in caplog.records if "choices saved" in r.getMessage()})


def test_alts_deployed_without_one_of_its_former_inputs_continues_with_the_others(
    merge: Merge, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last choices name the input that it no longer reads."""
    caplog.set_level(logging.WARNING)
    merge.write("a", 5)
    merge.await_all("abc", [lambda: merge.write("b", 5), lambda: merge.write("c", 5)])
    merge.write("a", 6)
    merge.write("b", 6)
    merge.await_all("ab")
    assert find_dropped_choices(caplog) == [
        f"merge: partition 0: '{merge.name}.c' is no longer an input: choices saved for it are dropped"
    ]


def test_alts_whose_input_was_deleted_and_created_again_reads_it_from_its_start(
    merge: Merge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    merge.write("a", 7)
    merge.await_all("ab", [lambda: None, lambda: merge.write("b", 9)])  # the last choices name b
    merge.recreate("b")
    merge.write("a", 6)
    merge.write("b", 5)
    merge.await_all("ab")
    assert find_dropped_choices(caplog) == [
        f"merge: partition 0: '{merge.name}.b' was deleted and created again: choices saved for it are dropped"
    ]


def test_alts_whose_committed_offset_was_set_back_reads_from_that_offset(
    cluster: Cluster, settings: MakeSettings, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    merge = Merge(cluster, name, settings(leave_on_stop=True))  # offsets of a group with members cannot be set
    merge.write("a", 5)
    merge.await_all("ab", [lambda: merge.write("b", 4), lambda: merge.write("a", 6)])
    group, topic = f"{merge.name}.merge", f"{merge.name}.a"
    back = ck.ConsumerGroupTopicPartitions(group, [ck.TopicPartition(topic, 0, 2)])
    for future in cluster.admin.alter_consumer_group_offsets([back]).values():
        future.result()
    merge.written += [m.value() for m in cluster.read(topic)[2:]]
    merge.write("b", 3)
    merge.await_all("ab")
    assert find_dropped_choices(caplog) == [
        (
            f"merge: partition 0: the committed offset of '{topic}' was set back from 5 to 2: "
            "choices saved for it are dropped"
        )
    ]
