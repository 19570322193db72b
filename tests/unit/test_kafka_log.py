"""ports/kafka/: what needs no broker; the rest is in tests/contract/."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.config import Settings
from kstreams_py.delivery import TopicInfo
from kstreams_py.errors import Retriable
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.kafka.errors import TESTED_CLIENTS, warn_if_untested
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


@pytest.fixture
def _warned_anew() -> Iterator[None]:
    warn_if_untested.cache_clear()
    yield
    warn_if_untested.cache_clear()


@pytest.mark.usefixtures("_warned_anew")
def test_untested_client_is_a_warning_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ck, "libversion", lambda: ("9.9.9", 0x090909FF))
    log = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1"))
    assert caplog.messages == []  # a command that runs no graph says nothing
    for number in range(2):
        log.consumer("g", f"g.{number}").close()
    assert [(r.levelno, r.getMessage().split(":")[0]) for r in caplog.records] == [
        (logging.WARNING, "librdkafka 9.9.9 is not among the versions tested with kstreams_py (2.16.0)")
    ]


@pytest.mark.usefixtures("_warned_anew")
@pytest.mark.parametrize("version", sorted(TESTED_CLIENTS))
def test_tested_client_is_no_warning(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ck, "libversion", lambda: (version, 0))
    KafkaLog(Settings(bootstrap_servers="127.0.0.1:1")).consumer("g", "g.0").close()
    assert caplog.messages == []


def test_client_is_bounded_by_what_is_tested() -> None:
    """An installation takes no release that no test has seen, and the tests run with one of the list."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(w for extra in project["optional-dependencies"].values() for w in extra)]
    bounds = {re.sub(r"\[.*\]", "", w) for w in wanted if w.startswith("confluent-kafka")}
    assert bounds == {"confluent-kafka>=2.16,<2.17"}
    assert all(version.startswith("2.16.") for version in TESTED_CLIENTS)
    assert ck.libversion()[0] in TESTED_CLIENTS
