"""ports/kafka/: what needs no broker; the rest is in tests/contract/."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.config import Settings
from kstreams_py.delivery import TopicInfo
from kstreams_py.errors import BrokerUnavailable, Retriable
from kstreams_py.groups import Pending
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.kafka.groups import GroupAdmin
from kstreams_py.record import TopicPartition


class Silent:
    """The future of an answer that never comes."""

    waited: float = 0.0

    def result(self, timeout: float) -> object:
        self.waited = timeout
        raise TimeoutError


def test_answer_that_never_comes_is_waited_for_longer_than_its_request_and_can_be_asked_for_again() -> None:
    log, silent = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1", request_timeout_ms=7_000)), Silent()
    with pytest.raises(Retriable, match=r"^no answer from 127\.0\.0\.1:1 within 7 s$"):
        log._result(silent)
    assert silent.waited > 7.0


class Admin:
    """A cluster of two brokers: the one that is asked for settings has not heard of "new" yet, neither knows "none"."""

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        unknown = Answer(ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)))
        here = SimpleNamespace(topic_id="id", partitions=[SimpleNamespace(replicas=[0, 1])] * 3)
        return {"none": unknown, "new": Answer(here), "old": Answer(here)}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        unknown = Answer(ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)))
        settings = {"cleanup.policy": SimpleNamespace(value="delete")}
        return {r: unknown if r.name == "new" else Answer(settings) for r in resources}


class Answer:
    """A future that is done."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def result(self) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def test_topic_that_one_broker_does_not_know_yet_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaLog, "_admin", Admin())
    found = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1")).topics(["none", "new", "old"])
    assert found == {"old": TopicInfo("old", "id", 3, 2, {"cleanup.policy": "delete"})}


def test_newest_record_that_cannot_be_read_now_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def get_watermark_offsets(self, partition: ck.TopicPartition, timeout: float) -> tuple[int, int]:
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))

    monkeypatch.setattr(KafkaLog, "_reader", Reader())
    with pytest.raises(Retriable, match=r"^reading the newest record of a\[0\]: "):
        KafkaLog(Settings(bootstrap_servers="127.0.0.1:1")).newest(TopicPartition("a", 0))


@pytest.mark.parametrize(("session", "heartbeat"), [(45_000, 1_000), (3_000, 1_000), (1_500, 500)])
def test_members_learn_of_a_rebalance_within_a_second(session: int, heartbeat: int) -> None:
    """The interval of heartbeats is what it takes the others to notice that a member has left."""
    settings = Settings(bootstrap_servers="127.0.0.1:1", session_timeout_ms=session, transaction_timeout_ms=1_000)
    consumer = KafkaLog(settings).consumer("group", "instance")
    assert consumer._settings["heartbeat.interval.ms"] == heartbeat
    consumer.close()


def test_pending_positions_are_named_even_if_their_transactions_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: GroupAdmin, partition: TopicPartition) -> None:
        raise BrokerUnavailable(f"no rights to {partition}")

    pinned, kept_in = (TopicPartition("a", 1),), TopicPartition("__consumer_offsets", 3)
    monkeypatch.setattr(GroupAdmin, "unstable", lambda *_: pinned)
    monkeypatch.setattr(GroupAdmin, "positions_partition", lambda *_: kept_in)
    monkeypatch.setattr(GroupAdmin, "open_transactions", refuse)
    found = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1")).pending("group", pinned)
    assert found == Pending("group", pinned, kept_in, (), f"no rights to {kept_in}")
