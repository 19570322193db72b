"""kafka/cluster.py and the modules around it: what needs no broker; the rest is in tests/contract/."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.errors import (
    BrokerUnavailable,
    KStreamsError,
    NotAuthorized,
    RecordRefused,
    RecordTooLarge,
    Retriable,
    TopicError,
)
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka import cluster as kafka
from kstreams_py.kafka import contact, reader, topic_admin
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.errors import (
    REFUSED,
    TESTED_CLIENTS,
    TOO_LARGE,
    ClientLog,
    E,
    not_authorized,
    record_refused,
    warn_if_untested,
)
from kstreams_py.kafka.group_description import GroupReader
from kstreams_py.kafka.groups import Pending
from kstreams_py.kafka.membership import Holder
from kstreams_py.kafka.topic_admin import TopicAdmin
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings
from tests.clusters import open_cluster


class Silent:
    """The future of an answer that never arrives."""

    waited: float = 0.0

    def result(self, timeout: float) -> object:
        self.waited = timeout
        raise TimeoutError


def test_missing_answer_raises_retriable_after_the_request_timeout() -> None:
    cluster, silent = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", request_timeout_ms=7_000)), Silent()
    with pytest.raises(Retriable, match=r"^no answer from 127\.0\.0\.1:1 within 7 s$"):
        cluster._topics._result(silent)
    assert silent.waited > 7.0


@pytest.mark.parametrize(
    ("name", "prefix", "setting", "table"),
    [
        ("", "", "--bootstrap-servers / KSTREAMS_BOOTSTRAP_SERVERS", "[kafka] or in KSTREAMS_KAFKA__*"),
        (
            "west",
            "cluster 'west': ",
            "bootstrap_servers under [clusters.west]",
            "[clusters.west.kafka] or in KSTREAMS_CLUSTERS__WEST__KAFKA__*",
        ),
    ],
)
def test_cluster_without_an_answer_is_named_with_address_settings_and_cause(
    name: str, prefix: str, setting: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = (
        f"{prefix}no Kafka broker answers at west:9092: start one (`kstreams broker start`), correct {setting}, or, if "
        f"it wants credentials, set security.protocol and sasl.* under {table}"
    )
    log, refused = ClientLog("admin"), "west:9092/bootstrap: Connect to west:9092 failed: Connection refused"
    monkeypatch.setattr(TopicAdmin, "client", SimpleNamespace(poll=lambda _: None))
    monkeypatch.setattr(contact, "_answered", {"west:9092"})
    admin = TopicAdmin({"bootstrap.servers": "west:9092"}, 1.0, log, name)
    down = ck.KafkaError(ck.KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert str(admin.explain(down)) == message
    log.on_error(ck.KafkaError(ck.KafkaError._TRANSPORT, refused))
    log.on_error(down)
    assert str(admin.explain(down)) == f"{message}; newest error of a connection: {refused}"


class Admin:
    """Two brokers: the one that is asked for settings does not know "new" yet, and neither knows "none"."""

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        unknown = Answer(ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)))
        here = SimpleNamespace(topic_id="id", partitions=[SimpleNamespace(replicas=[0, 1])] * 3)
        return {"none": unknown, "new": Answer(here), "old": Answer(here)}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        unknown = Answer(ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)))
        settings = {
            "cleanup.policy": SimpleNamespace(value="delete", source=5),
            "retention.ms": SimpleNamespace(value="7", source=1),
        }
        return {r: unknown if r.name == "new" else Answer(settings) for r in resources}


class Answer:
    """A future that is done."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def test_topic_that_one_broker_does_not_know_yet_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicAdmin, "client", Admin())
    found = open_cluster(Settings(bootstrap_servers="127.0.0.1:1")).topics(["none", "new", "old"])
    settings = {"cleanup.policy": "delete", "retention.ms": "7"}
    assert found == {"old": TopicInfo("old", "id", 3, 2, settings, ("retention.ms",))}


@pytest.mark.parametrize(("limit_ms", "expected"), [(15_000, [5.0, 10.0]), (6_000, [3.0, 3.0])])
def test_topics_that_a_frozen_broker_does_not_describe_are_asked_of_another_one(
    monkeypatch: pytest.MonkeyPatch, limit_ms: int, expected: list[float]
) -> None:
    limits: list[float] = []

    class FirstIsFrozen(Admin):
        def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
            limits.append(request_timeout)
            if len(limits) == 1:
                return {"old": Answer(ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT)))}
            return super().describe_topics(topics, request_timeout)

        def poll(self, timeout: float) -> None:
            """Reports nothing."""

    monkeypatch.setattr(TopicAdmin, "client", FirstIsFrozen())
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", request_timeout_ms=limit_ms))
    assert (set(cluster.topics(["old"])), limits) == ({"old"}, expected)


def test_broker_that_refuses_the_credentials_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    class Refusing(Admin):
        def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
            limits.append(request_timeout)
            cluster._topics._log.on_error(ck.KafkaError(E._AUTHENTICATION, "wrong password"))
            return {"old": Answer(ck.KafkaException(ck.KafkaError(E._TIMED_OUT)))}

        def poll(self, timeout: float) -> None:
            """Reports nothing."""

    monkeypatch.setattr(TopicAdmin, "client", Refusing())
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(BrokerUnavailable, match="refuses the credentials") as caught:
        cluster.topics(["old"])
    assert (caught.value.may_return, limits) == (False, [5.0])


def test_request_whose_client_another_thread_has_ended_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its future is never done: the processors of a slot share the client, and each ends it when no broker answers."""
    waited: list[float | None] = []

    class Never:
        def result(self, timeout: float | None = None) -> Any:
            waited.append(timeout)
            raise TimeoutError

    class FirstIsLost(Admin):
        def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
            return super().describe_topics(topics, request_timeout) if waited else {"old": Never()}

    monkeypatch.setattr(TopicAdmin, "client", FirstIsLost())
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", request_timeout_ms=15_000))
    assert (set(cluster.topics(["old"])), waited) == ({"old"}, [6.0])


def test_newest_record_that_cannot_be_read_in_time_raises_retriable(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def get_watermark_offsets(self, partition: ck.TopicPartition, timeout: float) -> tuple[int, int]:
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))

    monkeypatch.setattr(reader.Reader, "client", Reader())
    with pytest.raises(Retriable, match=r"^reading the newest record of a\[0\]: "):
        open_cluster(Settings(bootstrap_servers="127.0.0.1:1")).newest(TopicPartition("a", 0))


@pytest.mark.parametrize(
    ("answer", "described", "error", "message"),
    [
        (E._UNKNOWN_PARTITION, [None], Retriable, "a partition of 'a' has no leader that answers"),
        (E._TIMED_OUT, [None], Retriable, "a partition of 'a' has no leader that answers"),
        (E._TIMED_OUT, [None, E._TIMED_OUT], Retriable, "a partition of 'a' has no leader that answers"),
        (E._TIMED_OUT, [E._TIMED_OUT], BrokerUnavailable, "no Kafka broker answers at 127.0.0.1:1"),
        (E._UNKNOWN_PARTITION, [E.UNKNOWN_TOPIC_OR_PART], KStreamsError, "asking the broker at 127.0.0.1:1: "),
    ],
    ids=[
        "its leader was frozen before",
        "its leader is frozen",
        "the frozen one is asked for the leaders",
        "no broker answers",
        "it was deleted",
    ],
)
def test_ends_of_a_partition_that_nobody_tells(
    monkeypatch: pytest.MonkeyPatch, answer: int, described: list[int | None], error: type[Exception], message: str
) -> None:
    answers = iter(described)

    class Reader:
        def offsets_for_times(self, partitions: list[ck.TopicPartition], timeout: float) -> list[ck.TopicPartition]:
            raise ck.KafkaException(ck.KafkaError(answer))

        def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
            code = next(answers, described[-1])
            if code == E._TIMED_OUT:
                raise ck.KafkaException(ck.KafkaError(code))
            return SimpleNamespace(topics={topic: SimpleNamespace(error=None if code is None else ck.KafkaError(code))})

    monkeypatch.setattr(reader.Reader, "client", Reader())
    monkeypatch.setattr(kafka, "ENDS_SECONDS", 0.04 * (len(described) - 1))
    with pytest.raises(error, match=f"^{message}"):
        open_cluster(Settings(bootstrap_servers="127.0.0.1:1")).ends([TopicPartition("a", 0)])


@pytest.mark.parametrize(("leaders", "clients"), [(E._TIMED_OUT, 2), (E.UNKNOWN_TOPIC_OR_PART, 1)])
def test_reader_that_no_broker_answers_takes_another_client(
    monkeypatch: pytest.MonkeyPatch, leaders: int, clients: int
) -> None:
    """A client that has heard of no brokers may ask none again: librdkafka #5301."""
    made = list[object]()

    class Client:
        def __init__(self) -> None:
            made.append(self)

        def offsets_for_times(self, partitions: list[ck.TopicPartition], timeout: float) -> list[ck.TopicPartition]:
            raise ck.KafkaException(ck.KafkaError(E._TIMED_OUT))

        def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
            if leaders == E._TIMED_OUT:
                raise ck.KafkaException(ck.KafkaError(leaders))
            return SimpleNamespace(topics={topic: SimpleNamespace(error=ck.KafkaError(leaders))})

    monkeypatch.setattr(reader.Reader, "_make_client", lambda _: Client())
    monkeypatch.setattr(kafka, "ENDS_SECONDS", 0.0)
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1"))
    for _ in range(2):
        with pytest.raises(KStreamsError):
            cluster.ends([TopicPartition("a", 0)])
    assert len(made) == clients


def test_patient_cluster_asks_for_ends_until_the_limit_of_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = iter([True] * 5)

    class Reader:
        def offsets_for_times(self, partitions: list[ck.TopicPartition], timeout: float) -> list[ck.TopicPartition]:
            if next(silent, False):
                raise ck.KafkaException(ck.KafkaError(E._TIMED_OUT))
            return [ck.TopicPartition(p.topic, p.partition, 7) for p in partitions]

        def list_topics(self, topic: str, timeout: float) -> None:
            raise ck.KafkaException(ck.KafkaError(E._TIMED_OUT))

    monkeypatch.setattr(reader.Reader, "client", Reader())
    monkeypatch.setattr(kafka, "ENDS_SECONDS", 0.0)
    settings, asked = Settings(bootstrap_servers="127.0.0.1:1"), [TopicPartition("a", 0)]
    with pytest.raises(BrokerUnavailable):
        open_cluster(settings).ends(asked)
    with closing(KafkaCluster(settings, patient=True)) as patient:
        assert patient.ends(asked) == {TopicPartition("a", 0): 7}


@pytest.mark.parametrize(("session", "heartbeat"), [(45_000, 1_000), (3_000, 1_000), (1_500, 500)])
def test_heartbeat_interval_is_at_most_one_second(session: int, heartbeat: int) -> None:
    """Within this interval the other members learn that one has left."""
    settings = Settings(bootstrap_servers="127.0.0.1:1", session_timeout_ms=session, transaction_timeout_ms=1_000)
    consumer = open_cluster(settings).consumer("group", "instance")
    assert consumer._settings["heartbeat.interval.ms"] == heartbeat
    consumer.close()


@pytest.fixture
def _warning_not_logged_yet() -> Iterator[None]:
    warn_if_untested.cache_clear()
    yield
    warn_if_untested.cache_clear()


@pytest.mark.usefixtures("_warning_not_logged_yet")
def test_untested_client_version_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ck, "libversion", lambda: ("9.9.9", 0x090909FF))
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1"))
    assert caplog.messages == []  # a command that runs no graph logs nothing
    for number in range(2):
        cluster.consumer("g", f"g.{number}").close()
    assert [(r.levelno, r.getMessage().split(":")[0]) for r in caplog.records] == [
        (logging.WARNING, "librdkafka 9.9.9 is not among the versions tested with kstreams_py (2.16.0)")
    ]


@pytest.mark.usefixtures("_warning_not_logged_yet")
@pytest.mark.parametrize("version", sorted(TESTED_CLIENTS))
def test_tested_client_version_logs_nothing(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ck, "libversion", lambda: (version, 0))
    open_cluster(Settings(bootstrap_servers="127.0.0.1:1")).consumer("g", "g.0").close()
    assert caplog.messages == []


def test_client_dependency_is_bounded_by_the_tested_versions() -> None:
    """An installation takes no untested release, and the tests run with a tested one."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(w for extra in project["optional-dependencies"].values() for w in extra)]
    bounds = {re.sub(r"\[.*\]", "", w) for w in wanted if w.startswith("confluent-kafka")}
    assert bounds == {"confluent-kafka>=2.16,<2.17"}
    assert all(version.startswith("2.16.") for version in TESTED_CLIENTS)
    assert ck.libversion()[0] in TESTED_CLIENTS


# Settings of consumers and producers.


@pytest.mark.parametrize(
    ("joins", "queued", "answer", "partition"),
    [(False, 48 << 10, 16 << 20, 4 << 20), (True, 24 << 10, 8 << 20, 1 << 20)],
)
def test_consumer_of_a_join_fetches_fewer_bytes_ahead(
    joins: bool, queued: int, answer: int, partition: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "KafkaConsumer", lambda of_client, *_: of_client)
    found: Any = open_cluster(Settings(bootstrap_servers="127.0.0.1:1")).consumer("g", "g.0", joins=joins)
    sizes = ("queued.max.messages.kbytes", "fetch.max.bytes", "fetch.message.max.bytes")
    assert [found[name] for name in sizes] == [queued, answer, partition]


@pytest.mark.parametrize(
    ("options", "milliseconds"), [({}, 500), ({"joins": True}, 100), ({"pauses": True}, 100)], ids=str
)
def test_consumer_that_pauses_partitions_waits_less_for_a_fetch_of_idle_ones(
    options: dict[str, bool], milliseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "KafkaConsumer", lambda of_client, *_: of_client)
    found: Any = open_cluster(Settings(bootstrap_servers="127.0.0.1:1")).consumer("g", "g.0", **options)
    assert found["fetch.wait.max.ms"] == milliseconds


SHARED = {
    "bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 10_000, "log_level": 6, "retry.backoff.ms": 2,
    "reconnect.backoff.max.ms": 1_000, "topic.metadata.propagation.max.ms": 3_000, "log.connection.close": True,
    "batch.size": 1_000_000, "linger.ms": 20, "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10, "client.id": "g.p.0", "partitioner": "murmur2_random",
    "delivery.report.only.error": True, "max.in.flight": 1, "enable.metrics.push": False,
}  # fmt: skip
IDEMPOTENT = {"acks": -1, "enable.idempotence": True}
UNBOUNDED = {"message.timeout.ms": 0}


def settings_of(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **settings: Any) -> dict[str, Any]:
    """The settings of a producer, and the limit of its calls under "limit"."""
    monkeypatch.setattr(kafka, "KafkaProducer", lambda of_client, limit, **_: {**of_client, "limit": limit})
    found: Any = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", **settings)).producer(*arguments)
    return dict(found)


@pytest.mark.parametrize(
    ("guarantee", "durability", "expected"),
    [
        (
            Guarantee.EXACTLY_ONCE,
            Durability.COMMITTED,
            IDEMPOTENT
            | {"transactional.id": "g.p.0", "transaction.timeout.ms": 10_000, "metadata.recovery.strategy": "none"},
        ),
        (Guarantee.AT_LEAST_ONCE, Durability.COMMITTED, IDEMPOTENT | UNBOUNDED),
        (Guarantee.AT_MOST_ONCE, Durability.COMMITTED, IDEMPOTENT | UNBOUNDED),
        (Guarantee.AT_LEAST_ONCE, Durability.LEADER, UNBOUNDED | {"acks": 1, "enable.idempotence": False}),
        (Guarantee.AT_LEAST_ONCE, Durability.NONE, UNBOUNDED | {"acks": 0, "enable.idempotence": False}),
        (Guarantee.AT_MOST_ONCE, Durability.NONE, UNBOUNDED | {"acks": 0, "enable.idempotence": False, "retries": 0}),
    ],
)
def test_producer_settings_follow_its_guarantee_and_durability(
    guarantee: Guarantee, durability: Durability, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings_of(monkeypatch, producer_mode(guarantee, durability), "g.p.0")
    assert found == SHARED | expected | {"limit": 15.0}


@pytest.mark.parametrize(("batch_bytes", "size"), [(None, 1_000_000), (5_000, 5_000), (5_000_000, 1_000_000)])
def test_batch_size_is_limited_by_the_topics(
    batch_bytes: int | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings_of(monkeypatch, producer_mode(Guarantee.AT_LEAST_ONCE, Durability.COMMITTED), "g.p.0", batch_bytes)
    assert found["batch.size"] == size


def test_user_settings_of_the_client_override_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    mode, own = producer_mode(Guarantee.AT_LEAST_ONCE, Durability.COMMITTED), {"linger.ms": "7"}
    found = settings_of(monkeypatch, mode, "g.p.0", kafka=own)
    assert found == SHARED | IDEMPOTENT | UNBOUNDED | {"linger.ms": "7", "limit": 15.0}


# Requests to the cluster.


class Brokers:
    """An admin client of brokers 2 and 5 that returns the answer of the test."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(brokers={5: None, 2: None})

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        self.requests += [(resource.restype.name, resource.name, request_timeout) for resource in resources]
        return {resource: Answer(self.answer) for resource in resources}

    def create_partitions(self, wanted: list[Any], request_timeout: float) -> dict[str, Any]:
        self.requests += [(new.topic, new.new_total_count, request_timeout) for new in wanted]
        return {new.topic: Answer(self.answer) for new in wanted}

    def describe(self, group: str, limit: float) -> Any:
        self.requests += [(group, limit)]
        return self.answer

    def poll(self, timeout: float) -> None:
        pass


def cluster_with(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> KafkaCluster:
    monkeypatch.setattr(TopicAdmin, "client", brokers)
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1"))
    monkeypatch.setattr(cluster, "_groups", brokers)
    return cluster


UNKNOWN = ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN))


@pytest.mark.parametrize(
    ("answer", "minutes"),
    [
        ({"offsets.retention.minutes": SimpleNamespace(value="10080")}, 10_080),
        ({"log.dirs": SimpleNamespace(value="data")}, None),
        ({"offsets.retention.minutes": SimpleNamespace(value="a week")}, None),
        (UNKNOWN, None),
    ],
    ids=["number", "missing", "no number", "refused"],
)
def test_offsets_retention_is_the_setting_of_a_broker_or_none(
    answer: Any, minutes: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    brokers = Brokers(answer)
    assert cluster_with(brokers, monkeypatch).offsets_retention_minutes() == minutes
    assert brokers.requests == [("BROKER", "2", 15.0)]
    assert ("cannot read offsets.retention.minutes: " in caplog.text) is (minutes is None)


def failed(code: int) -> ck.KafkaException:
    return ck.KafkaException(ck.KafkaError(code))


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ({"a": None, "none": failed(E.UNKNOWN_TOPIC_OR_PART)}, None, ""),
        (
            {"a": failed(E.TOPIC_DELETION_DISABLED), "none": None},
            TopicError,
            r"topic 'a' cannot be deleted: the brokers have delete\.topic\.enable=false: set it to true",
        ),
        (
            {"a": failed(E.TOPIC_AUTHORIZATION_FAILED), "none": None},
            NotAuthorized,
            r"asking the broker at 127\.0\.0\.1:1 \(topic 'a'\): the broker refuses it",
        ),
        ({"a": None, "old": None}, TopicError, "topics old were deleted and are still seen: see the broker's log"),
    ],
    ids=["missing", "disabled", "no right", "still seen"],
)
def test_topics_that_cannot_be_deleted_are_named_with_the_remedy(
    answers: dict[str, Exception | None], error: type[Exception] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], float]] = []

    class Deleting(Admin):
        def delete_topics(self, topics: list[str], request_timeout: float) -> dict[str, Any]:
            asked.append((topics, request_timeout))
            return {name: Answer(answers[name]) for name in topics}

        def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
            found = super().describe_topics(topics, request_timeout)
            return {name: each for name, each in found.items() if name in answers}

        def poll(self, timeout: float) -> None:
            """Reports nothing."""

    monkeypatch.setattr(TopicAdmin, "client", Deleting())
    clock = SimpleNamespace(monotonic=iter(range(0, 1_000, 10)).__next__, sleep=lambda _: None)
    monkeypatch.setattr(topic_admin, "time", clock)
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", request_timeout_ms=15_000))
    with pytest.raises(error, match=message) if error is not None else nullcontext():
        cluster.delete_topics(answers)
    assert asked == [(sorted(answers), 15.0)]


def test_grow_requests_the_total_number_of_partitions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    brokers = Brokers()
    cluster_with(brokers, monkeypatch).grow("__ks.g.p.journal", 6)
    assert brokers.requests == [("__ks.g.p.journal", 6, 15.0)]
    assert "topic '__ks.g.p.journal' has 6 partitions now" in caplog.text


def test_grow_that_is_refused_names_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ck.KafkaException(ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(NotAuthorized, match=r"^asking the broker at .* \(topic 'x'\): the broker refuses it"):
        cluster_with(Brokers(refused), monkeypatch).grow("x", 6)


@pytest.mark.parametrize("state", ck.ConsumerGroupState)
def test_holder_of_a_static_membership_has_its_client_and_host(
    state: ck.ConsumerGroupState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def member(name: str | None, member_id: str) -> Any:
        return SimpleNamespace(
            group_instance_id=name, member_id=member_id, client_id=f"{name}@host-1-42", host="/10.0.0.7"
        )

    members = [member(None, "x"), member("g.p.0", "m0"), member("g.p.1", "m1")]
    brokers = Brokers(SimpleNamespace(members=members, state=state, coordinator=SimpleNamespace(id=2)))
    cluster = cluster_with(brokers, monkeypatch)
    assert cluster._holder("g.p", "g.p.1") == Holder(
        "m1", "g.p.1@host-1-42", "10.0.0.7", state is ck.ConsumerGroupState.STABLE, 2
    )
    assert cluster._holder("g.p", "g.p.2") is None
    assert brokers.requests == [("g.p", 15.0)] * 2


# Messages about what a broker refuses.


@pytest.mark.parametrize(
    ("code", "name", "right"),
    [
        (
            ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "TOPIC_AUTHORIZATION_FAILED",
            (
                "READ on the topic if it is read, WRITE if it is written, DESCRIBE and DESCRIBE_CONFIGS, "
                "and CREATE, ALTER and DELETE if its name begins with __ks"
            ),
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
            (
                "WRITE on the topics that it writes (before Kafka 2.8, IDEMPOTENT_WRITE on the cluster), or CREATE "
                "where topics are created"
            ),
        ),
    ],
)
def test_missing_right_is_named_with_the_refused_action(code: int, name: str, right: str) -> None:
    assert str(not_authorized(ck.KafkaError(code), "starting the producer")) == (
        f"starting the producer: the broker refuses it ({name}): grant this user {right} "
        "(kafka-acls --add; `kstreams acls` prints all of a graph)"
    )


CORRECT = "correct what the function returns, or the topic's settings"
SHRINK = (
    "raise the topic's max.message.bytes and KSTREAMS_KAFKA__MESSAGE_MAX_BYTES, or make the record (or "
    "KSTREAMS_KAFKA__BATCH_SIZE) smaller"
)


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_refused_record_is_reported_with_its_topic_and_the_remedy(code: int) -> None:
    error = ck.KafkaError(code)
    kind, text = RecordRefused, f"topic 'x' refuses a record ({error.name()}: {error.str()}): {CORRECT}"
    if code in TOO_LARGE:
        kind, text = RecordTooLarge, f"a record is larger than topic 'x' takes: {SHRINK}"
    mistake = record_refused(error, "x")
    assert (type(mistake), str(mistake)) == (kind, text)


def test_pending_offsets_are_returned_if_their_transactions_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: GroupAdmin, partition: TopicPartition) -> None:
        raise BrokerUnavailable(f"no rights to {partition}")

    pinned, kept_in = (TopicPartition("a", 1),), TopicPartition("__consumer_offsets", 3)
    monkeypatch.setattr(GroupAdmin, "unstable", lambda *_: pinned)
    monkeypatch.setattr(GroupAdmin, "positions_partition", lambda *_: kept_in)
    monkeypatch.setattr(GroupAdmin, "open_transactions", refuse)
    found = open_cluster(Settings(bootstrap_servers="127.0.0.1:1")).pending("group", pinned)
    assert found == Pending("group", pinned, kept_in, (), f"no rights to {kept_in}")


def test_shorter_max_poll_interval_is_accepted_by_every_client() -> None:
    """The client refuses one below its session.timeout.ms, which is 45 s unless it is set."""
    own = {"max.poll.interval.ms": "20000"}
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", session_timeout_ms=10_000, kafka=own))
    cluster.consumer("g", "g.0").close()
    assert cluster._reader.client is not None
    cluster.close()


def test_close_ends_the_clients_that_wait_for_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[GroupReader]()

    def close(self: GroupReader) -> None:
        closed.append(self)

    monkeypatch.setattr(GroupReader, "close", close)
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1"))
    cluster.close()
    assert closed == [cluster._groups]


class Ending:
    """A client that reads a partition of four records, whose new leader knows of one of them at first."""

    def __init__(self) -> None:
        end = ck.KafkaError(ck.KafkaError._PARTITION_EOF)
        records = [self._message(at, None) for at in range(4)]
        self._batches = [[records[0], self._message(1, end)], [*records[1:], self._message(4, end)]]

    @staticmethod
    def _message(offset: int, error: ck.KafkaError | None) -> ck.Message:
        return ck.Message("a", 0, offset, error=error)

    def get_watermark_offsets(self, *_: object) -> tuple[int, int]:
        return 0, 4

    def consume(self, *_: object) -> list[Any]:
        return self._batches.pop(0) if self._batches else []

    def assign(self, *_: object) -> None:
        """Fetches from there."""

    def unassign(self) -> None:
        """Fetches no more."""


def test_partition_is_read_to_its_end_where_a_new_leader_reports_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader.Reader, "client", Ending())
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", request_timeout_ms=1_000))
    assert [m.offset() for m in cluster.read(TopicPartition("a", 0))] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(ck.KafkaError._DESTROY, id="another thread has ended the client"),
        pytest.param(ck.KafkaError._DESTROY_BROKER, id="the broker has left the metadata"),
    ],
)
def test_request_whose_client_or_broker_has_gone_counts_as_unanswered(code: int) -> None:
    cluster = open_cluster(Settings(bootstrap_servers="127.0.0.1:1"))
    error = cluster._topics.explain(ck.KafkaError(code))
    assert isinstance(error, BrokerUnavailable)
