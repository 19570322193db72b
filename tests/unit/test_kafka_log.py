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
from kstreams_py.delivery import PROMISES, Durability, Guarantee, TopicInfo
from kstreams_py.errors import BrokerUnavailable, NotAuthorized, RecordRefused, RecordTooLarge, Retriable
from kstreams_py.groups import Pending
from kstreams_py.ports import kafka
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.kafka.consumer import Holder
from kstreams_py.ports.kafka.errors import (
    REFUSED,
    RIGHTS,
    TESTED_CLIENTS,
    TOO_LARGE,
    not_authorized,
    record_refused,
    warn_if_untested,
)
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

    def result(self, timeout: float | None = None) -> Any:
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


# What consumers and producers are asked for.


@pytest.mark.parametrize(
    ("joins", "queued", "answer", "partition"),
    [(False, 48 << 10, 16 << 20, 4 << 20), (True, 24 << 10, 8 << 20, 1 << 20)],
)
def test_consumer_whose_records_wait_for_each_other_has_fewer_of_them_ready(
    joins: bool, queued: int, answer: int, partition: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "KafkaConsumer", lambda of_client, *_: of_client)
    found: Any = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1")).consumer("g", "g.0", joins=joins)
    sizes = ("queued.max.messages.kbytes", "fetch.max.bytes", "fetch.message.max.bytes")
    assert [found[name] for name in sizes] == [queued, answer, partition]


OF_ALL = {
    "bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 10_000, "log_level": 6, "retry.backoff.ms": 2,
    "reconnect.backoff.max.ms": 1_000, "topic.metadata.propagation.max.ms": 3_000, "log.connection.close": True,
    "batch.size": 1_000_000, "linger.ms": 20, "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10, "client.id": "g.p.0", "partitioner": "murmur2_random",
    "delivery.report.only.error": True, "max.in.flight": 1,
}  # fmt: skip
IDEMPOTENT = {"acks": -1, "enable.idempotence": True}
UNBOUNDED = {"message.timeout.ms": 0}


def settings_of(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **settings: Any) -> dict[str, Any]:
    """The settings of a producer, and the limit of its calls under "limit"."""
    monkeypatch.setattr(kafka, "KafkaProducer", lambda of_client, limit, **_: {**of_client, "limit": limit})
    return dict(KafkaLog(Settings(bootstrap_servers="127.0.0.1:1", **settings)).producer(*arguments))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("guarantee", "durability", "expected"),
    [
        (
            Guarantee.EXACTLY_ONCE,
            Durability.COMMITTED,
            IDEMPOTENT | {"transactional.id": "g.p.0", "transaction.timeout.ms": 10_000},
        ),
        (Guarantee.AT_LEAST_ONCE, Durability.COMMITTED, IDEMPOTENT | UNBOUNDED),
        (Guarantee.AT_MOST_ONCE, Durability.COMMITTED, IDEMPOTENT | UNBOUNDED),
        (
            Guarantee.AT_LEAST_ONCE,
            Durability.LEADER,
            UNBOUNDED | {"acks": 1, "enable.idempotence": False},
        ),
        (
            Guarantee.AT_LEAST_ONCE,
            Durability.NONE,
            UNBOUNDED | {"acks": 0, "enable.idempotence": False},
        ),
        (
            Guarantee.AT_MOST_ONCE,
            Durability.NONE,
            UNBOUNDED | {"acks": 0, "enable.idempotence": False, "retries": 0},
        ),
    ],
)
def test_producer_is_asked_for_what_its_guarantee_and_durability_take(
    guarantee: Guarantee, durability: Durability, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings_of(monkeypatch, PROMISES[guarantee], durability, "g.p.0")
    assert found == OF_ALL | expected | {"limit": 15.0}


@pytest.mark.parametrize(("batch_bytes", "size"), [(None, 1_000_000), (5_000, 5_000), (5_000_000, 1_000_000)])
def test_batches_are_no_larger_than_their_topics_take(
    batch_bytes: int | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings_of(monkeypatch, PROMISES[Guarantee.AT_LEAST_ONCE], Durability.COMMITTED, "g.p.0", batch_bytes)
    assert found["batch.size"] == size


def test_settings_of_ones_own_win_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    promise, own = PROMISES[Guarantee.AT_LEAST_ONCE], {"linger.ms": "7"}
    found = settings_of(monkeypatch, promise, Durability.COMMITTED, "g.p.0", kafka=own)
    assert found == OF_ALL | IDEMPOTENT | UNBOUNDED | {"linger.ms": "7", "limit": 15.0}


# What the cluster is asked.


class Cluster:
    """An admin client of brokers 2 and 5, whose answers a test gives."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(brokers={5: None, 2: None})

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        self.asked += [(resource.restype.name, resource.name, request_timeout) for resource in resources]
        return {resource: Answer(self.answer) for resource in resources}

    def create_partitions(self, wanted: list[Any], request_timeout: float) -> dict[str, Any]:
        self.asked += [(new.topic, new.new_total_count, request_timeout) for new in wanted]
        return {new.topic: Answer(self.answer) for new in wanted}

    def describe(self, group: str, limit: float) -> Any:
        self.asked += [(group, limit)]
        return self.answer

    def poll(self, timeout: float) -> None:
        pass


def log_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> KafkaLog:
    monkeypatch.setattr(KafkaLog, "_admin", cluster)
    log = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1"))
    monkeypatch.setattr(log, "_groups", cluster)
    return log


UNKNOWN = ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN))


@pytest.mark.parametrize(
    ("answer", "minutes"),
    [
        ({"offsets.retention.minutes": SimpleNamespace(value="10080")}, 10_080),
        ({"log.dirs": SimpleNamespace(value="data")}, None),
        ({"offsets.retention.minutes": SimpleNamespace(value="a week")}, None),
        (UNKNOWN, None),
    ],
    ids=["said", "hidden", "no number", "refused"],
)
def test_retention_of_positions_is_what_a_broker_says_or_is_not_known(
    answer: Any, minutes: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster = Cluster(answer)
    assert log_of(cluster, monkeypatch).offsets_retention_minutes() == minutes
    assert cluster.asked == [("BROKER", "2", 15.0)]
    assert ("offsets.retention.minutes is not known: " in caplog.text) is (minutes is None)


def test_topic_is_given_so_many_partitions_in_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster = Cluster()
    log_of(cluster, monkeypatch).grow("__ks.g.p.journal", 6)
    assert cluster.asked == [("__ks.g.p.journal", 6, 15.0)]
    assert "topic '__ks.g.p.journal' has 6 partitions now" in caplog.text


def test_topic_that_cannot_be_given_partitions_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ck.KafkaException(ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(NotAuthorized, match=r"^asking the broker at .* \(topic 'x'\): the broker refuses it"):
        log_of(Cluster(refused), monkeypatch).grow("x", 6)


def test_holder_of_a_membership_is_found_by_its_name_with_its_client_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def member(name: str | None, member_id: str) -> Any:
        return SimpleNamespace(
            group_instance_id=name, member_id=member_id, client_id=f"{name}@host-1-42", host="/10.0.0.7"
        )

    cluster = Cluster(SimpleNamespace(members=[member(None, "x"), member("g.p.0", "m0"), member("g.p.1", "m1")]))
    log = log_of(cluster, monkeypatch)
    assert log._holder("g.p", "g.p.1") == Holder("m1", "g.p.1@host-1-42", "10.0.0.7")
    assert log._holder("g.p", "g.p.2") is None
    assert cluster.asked == [("g.p", 15.0)] * 2


# What a broker refuses, in words.


@pytest.mark.parametrize(
    ("code", "name", "right"),
    [
        (
            ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "TOPIC_AUTHORIZATION_FAILED",
            RIGHTS[ck.KafkaError.TOPIC_AUTHORIZATION_FAILED],
        ),
        (
            ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
            "GROUP_AUTHORIZATION_FAILED",
            "READ and DESCRIBE on the consumer group",
        ),
        (
            ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "WRITE and DESCRIBE on the transactional id",
        ),
        (
            ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            "CLUSTER_AUTHORIZATION_FAILED",
            "IDEMPOTENT_WRITE on the cluster, or CREATE where topics are created",
        ),
    ],
)
def test_right_that_is_missing_is_told_with_what_was_done(code: int, name: str, right: str) -> None:
    assert str(not_authorized(ck.KafkaError(code), "starting the producer")) == (
        f"starting the producer: the broker refuses it ({name}): grant this user {right} (kafka-acls --add)"
    )


CORRECT = "correct what the function returns, or the topic's settings"
SHRINK = (
    "raise the topic's max.message.bytes and KSTREAMS_KAFKA__MESSAGE_MAX_BYTES, or make the record (or "
    "KSTREAMS_KAFKA__BATCH_SIZE) smaller"
)


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_record_that_a_topic_refuses_is_told_with_its_topic_and_the_remedy(code: int) -> None:
    error = ck.KafkaError(code)
    kind, text = RecordRefused, f"topic 'x' refuses a record ({error.name()}: {error.str()}): {CORRECT}"
    if code in TOO_LARGE:
        kind, text = RecordTooLarge, f"a record for topic 'x' is larger than it takes: {SHRINK}"
    mistake = record_refused(error, "x")
    assert (type(mistake), str(mistake)) == (kind, text)


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


def test_a_shorter_poll_interval_of_ones_own_is_taken_by_every_client() -> None:
    """The client refuses one below its session.timeout.ms, which is 45 s unless it is set."""
    own = {"max.poll.interval.ms": "20000"}
    log = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1", session_timeout_ms=10_000, kafka=own))  # type: ignore[arg-type]
    log.consumer("g", "g.0").close()
    assert log._reader is not None
    log.close()
