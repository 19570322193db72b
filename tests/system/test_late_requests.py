"""Requests and responses that are late, lost or doubled on their way to a real broker (truths 1 and 2; KS-10, KS-11).

A proxy between the clients and the broker does it. The late ones are shown twice: kstreams_py stays clean, and a loop
written by hand on the same client does not, which shows that the tests bite.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck
import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.delivery import PROMISES, Durability, Guarantee, Output
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.testing import Anomaly, Expected, Kind, check, explain
from tests.system.harness import Cluster, running, wait_until
from tests.system.proxy import Proxy, Rule, Side, proxied_broker
from tests.system.recorder import Recorder

SOCKET_TIMEOUT_MS: Final = 1_000
"""After so long a client takes a request for lost, and sends it again on a new connection."""

INVALID_PRODUCER_EPOCH: Final = 47
FENCED_INSTANCE_ID: Final = 82

AT_LEAST_ONCE: Final = PROMISES[Guarantee.AT_LEAST_ONCE]
AT_MOST_ONCE: Final = PROMISES[Guarantee.AT_MOST_ONCE]

FIRST: Final = [b"%d" % i for i in range(100)]
SECOND: Final = [b"%d" % i for i in range(100, 1_200)] + [b"wait"]
"""More than a worker takes at once: when it comes to the last, outputs of the same transaction have been written."""

THIRD: Final = [b"%d" % i for i in range(1_200, 1_300)]


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Cluster, Proxy]]:
    """A broker, and the proxy that the clients under test see in its place."""
    with proxied_broker() as (kafka, proxy):
        cluster = Cluster(kafka.bootstrap_servers)
        cluster.create("first")
        cluster.transaction("first", [("first", b"")])  # makes the broker load what the first transaction waits for
        yield cluster, proxy


@pytest.fixture
def cluster(proxied: tuple[Cluster, Proxy]) -> Cluster:
    """The broker, seen directly."""
    return proxied[0]


@pytest.fixture
def proxy(proxied: tuple[Cluster, Proxy]) -> Iterator[Proxy]:
    yield proxied[1]
    proxied[1].lift()


def through(proxy: Proxy, directory: Path, **changed: Any) -> Settings:
    """Settings of a worker behind the proxy; nothing is committed for being old."""
    values = {"session_timeout_ms": 10_000, "transaction_timeout_ms": 8_000, "commit_interval_ms": 7_000}
    kafka = {"socket.timeout.ms": SOCKET_TIMEOUT_MS, **changed.pop("kafka", {})}
    return Settings.load(
        bootstrap_servers=proxy.bootstrap_servers, schema_directory=directory, kafka=kafka, **(values | changed)
    )


class Scene:
    """A topic that is copied to another by a processor behind the proxy, and the history of it."""

    def __init__(self, name: str, cluster: Cluster, proxy: Proxy, directory: Path) -> None:
        self.name, self.source, self.target = name, f"{name}.in", f"{name}.out"
        self.group, self.client = f"{name}.copy", f"{name}.copy.0"
        self.cluster = cluster
        self.proxy = proxy
        self.directory = directory
        self.recorder = Recorder(cluster.bootstrap_servers)
        self.history = self.recorder.history
        self.waiting = threading.Event()
        self.gate = threading.Event()
        self.calls: list[bytes] = []
        self.written: list[bytes] = []
        self.looks = 0
        cluster.create(self.source, self.target)

    def copy(self, value: bytes) -> bytes:
        """The processor's function: at the value `wait` it waits until the gate is opened."""
        self.calls.append(value)
        if value == b"wait":
            self.waiting.set()
            assert self.gate.wait(30)
        return value

    def write(self, values: list[bytes]) -> None:
        """Writes to the source, in one batch, so that a reader has all or nothing of it."""
        producer = ck.Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "linger.ms": 1_000})
        for value in values:
            producer.produce(self.source, value, b"key", on_delivery=self.history.on_delivery(sender="writer"))
        assert producer.flush(30) == 0
        self.written += values

    def await_written(self) -> None:
        """Returns once the group's position is behind all that was written."""
        self.cluster.await_committed(self.group, self.source, {0: len(self.written)})

    def deliver_more(self) -> None:
        self.write([b"%d" % i for i in range(len(self.written), len(self.written) + 20)])
        self.await_written()

    def await_read(self, last: bytes) -> None:
        """Returns once a committed reader sees this output."""
        wait_until(lambda: last in self.cluster.values(self.target), f"{last!r} is delivered")

    def look(self) -> None:
        """A committed reader reads what is there now."""
        self.looks += 1
        self.history.read(f"reader {self.looks}", self.cluster.read(self.target))

    def finished(self) -> list[bytes | None]:
        """All that was delivered, which ends the history."""
        for topic in (self.source, self.target):
            found = self.cluster.read(topic)
            self.history.final_read("last reader", topic, found, self.recorder.ends(topic, "read_uncommitted"))
        return [m.value() for m in found]

    def anomalies(self) -> list[Anomaly]:
        return check(self.history, [Expected(self.source, to=self.target)])

    def positions_committed(self) -> int:
        """How often a consumer has committed positions, in all scenes."""
        return sum(frame.api == "OffsetCommit" for frame in list(self.proxy.seen))

    def producer_since(self, at: float) -> bool:
        """Whether the worker has asked for a new producer since then."""
        return any(frame.at > at for frame in self.proxy.requests("InitProducerId", self.client))

    def ends_asked(self) -> list[str]:
        """What each EndTxn of the worker has asked for."""
        return ["commit" if f.body[-1] else "abort" for f in self.proxy.requests("EndTxn", self.client)]


@pytest.fixture
def scene(name: str, cluster: Cluster, proxy: Proxy, tmp_path: Path) -> Scene:
    return Scene(name, cluster, proxy, tmp_path)


@contextmanager
def framework(scene: Scene, guarantee: str = "exactly_once", **changed: Any) -> Iterator[None]:
    """kstreams_py copies while the block runs."""
    graph = ks.Graph(scene.name, guarantee=guarantee)
    graph.map(graph.topic(scene.source), to=graph.topic(scene.target), id="copy")(scene.copy)
    with running(graph, through(scene.proxy, scene.directory, **changed)):
        yield


@contextmanager
def by_hand(scene: Scene) -> Iterator[None]:
    """A plain loop copies while the block runs; when it dies of an error it is started again, as by a supervisor."""
    stopping = threading.Event()

    def supervise() -> None:
        while not stopping.is_set():
            try:
                plain_loop(scene, stopping)
            except ck.KafkaException as error:
                scene.history.fault(f"the loop died: {error}")

    thread = threading.Thread(target=supervise, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def plain_loop(scene: Scene, stopping: threading.Event) -> None:
    """What is usually written: after a commit that succeeded the next transaction; after an error abort and go back."""
    common = {"bootstrap.servers": scene.proxy.bootstrap_servers, "socket.timeout.ms": SOCKET_TIMEOUT_MS}
    producer = ck.Producer({**common, "client.id": scene.client, "transactional.id": scene.client, "linger.ms": 5})
    consumer = ck.Consumer(
        {**common, "group.id": scene.group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        producer.init_transactions(30)
        consumer.subscribe([scene.source])
        while not stopping.is_set():
            messages = consumer.consume(10_000, 0.1)
            if not messages:
                continue
            transaction = scene.history.begun(scene.client)
            producer.begin_transaction()
            try:
                for m in messages:
                    report = scene.history.on_delivery(transaction, scene.client)
                    producer.produce(scene.target, scene.copy(m.value()), m.key(), on_delivery=report)
                positions = [ck.TopicPartition(scene.source, 0, messages[-1].offset() + 1)]
                producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 10)
                scene.history.commit_asked(transaction)
                producer.commit_transaction(10)
                scene.history.committed(transaction)
            except ck.KafkaException:
                producer.abort_transaction(10)
                scene.history.aborted(transaction)
                consumer.seek(ck.TopicPartition(scene.source, 0, messages[0].offset()))
    finally:
        consumer.close()


Runner = Callable[[Scene], AbstractContextManager[None]]


def with_a_late(api: str, scene: Scene, runner: Runner) -> Rule:
    """Runs a copier whose first request of a kind reaches the broker in the middle of the next transaction."""
    late = scene.proxy.hold(api, client=scene.client)
    with runner(scene):
        scene.write(FIRST)
        scene.await_read(FIRST[-1])
        assert late.caught, "the client went on without an answer to its first request"
        scene.history.fault(f"an {api} reaches the broker late")
        if api == "TxnOffsetCommit":
            deliver_before_the_end(late, scene)
        else:
            deliver_among_the_outputs(late, scene)
        scene.await_read(SECOND[-1])
    if api == "TxnOffsetCommit":  # only a restart tells where the group stands
        with runner(scene):
            scene.write(THIRD)
            scene.await_read(THIRD[-1])
    return late


def deliver_among_the_outputs(late: Rule, scene: Scene) -> None:
    """When a transaction is open, and some of its outputs are written."""
    scene.write(SECOND)
    wait_until(scene.waiting.is_set, "the function waits")
    written = len(FIRST) + 100
    wait_until(lambda: len(scene.cluster.read(scene.target, "read_uncommitted")) >= written, "outputs are written")
    late.release()
    wait_until(lambda: late.answers, "the broker has answered the late request")
    scene.look()
    scene.gate.set()


def deliver_before_the_end(late: Rule, scene: Scene) -> None:
    """When a transaction has its outputs and its positions, and its end is asked for."""
    scene.gate.set()
    end = scene.proxy.hold("EndTxn", client=scene.client)
    scene.write(SECOND)
    wait_until(lambda: end.caught, "the end of the second transaction")
    late.release()
    wait_until(lambda: late.answers, "the broker has answered the late request")
    end.release()


@pytest.mark.parametrize("api", ["EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn"])
def test_exactly_once_late_request_of_the_transaction_before_changes_nothing(api: str, scene: Scene) -> None:
    """Truth 2: the request timed out, so that a new producer wrote the second transaction, and fenced the request."""
    late = with_a_late(api, scene, framework)
    assert_delivered_once(scene)
    assert INVALID_PRODUCER_EPOCH.to_bytes(2, "big") in late.answers[0].body[4:]


def assert_delivered_once(scene: Scene) -> None:
    assert scene.recorder.positions(scene.group, scene.source) == {0: len(scene.written)}
    assert scene.finished() == scene.written
    assert not (found := scene.anomalies()), explain(found, scene.history)
    assert set(scene.ends_asked()) == {"commit"}


def kinds(scene: Scene) -> set[Kind]:
    return {anomaly.kind for anomaly in scene.anomalies()}


def test_plain_loop_late_end_of_a_transaction_commits_half_of_the_next(scene: Scene) -> None:
    """KAFKA-17754: the outputs are read although their transaction was aborted, or before its commit was asked for.

    The broker refuses what the loop goes on to write in a transaction that is over; the loop does it all again.
    """
    with_a_late("EndTxn", scene, by_hand)
    found = scene.finished()
    torn = len(found) - len(scene.written)
    assert torn > 0
    assert found == FIRST + SECOND[:torn] + SECOND
    assert kinds(scene) & {Kind.ABORTED_READ, Kind.PRECOMMITTED_READ}


def test_plain_loop_late_positions_are_committed_by_the_next_transaction(scene: Scene) -> None:
    """The group goes back to what the first transaction had read, so that a restart does the second again.

    The broker takes them from when the next transaction has its own positions; before that it refuses them.
    """
    with_a_late("TxnOffsetCommit", scene, by_hand)
    assert scene.finished() == FIRST + SECOND + SECOND + THIRD
    assert kinds(scene) == {Kind.DUPLICATE}


def test_plain_loop_late_partitions_are_harmless(scene: Scene) -> None:
    """The one late request that is: the broker adds a partition to the next transaction that is in it already."""
    with_a_late("AddPartitionsToTxn", scene, by_hand)
    assert_delivered_once(scene)


@pytest.mark.parametrize("side", ["request", "response"])
def test_exactly_once_commit_that_is_never_answered_is_not_aborted_and_done_once(side: Side, scene: Scene) -> None:
    """Truth 1: the committed positions say whether it was carried out, and nobody asks for an abort."""
    with framework(scene, request_timeout_ms=2_500):
        scene.write(FIRST)
        scene.await_read(FIRST[-1])
        lost = scene.proxy.drop("EndTxn", side=side, client=scene.client, times=None, silent=True)
        scene.history.fault(f"each {side} of EndTxn is lost")
        scene.gate.set()
        scene.write(SECOND)
        wait_until(lambda: lost.caught and scene.producer_since(lost.caught[0].at), "a new producer")
        lost.lift()
        scene.await_read(SECOND[-1])
        scene.write(THIRD)
        scene.await_read(THIRD[-1])
    assert_delivered_once(scene)
    assert scene.calls == (FIRST + SECOND + THIRD if side == "response" else FIRST + SECOND + SECOND + THIRD)


def test_exactly_once_fenced_worker_learns_whether_it_has_its_seat_without_a_commit(scene: Scene) -> None:
    """A commit outside of a transaction could come late, and would put the group back."""
    with framework(scene):
        scene.write(FIRST)
        scene.await_written()
        committed = scene.positions_committed()
        scene.history.fault("another producer takes the transactional id")
        common = {"bootstrap.servers": scene.cluster.bootstrap_servers, "transactional.id": scene.client}
        ck.Producer(common).init_transactions(30)
        scene.write(THIRD)
        scene.await_written()
        assert scene.positions_committed() == committed
    assert_delivered_once(scene)


def test_late_positions_do_not_put_the_group_back(scene: Scene) -> None:
    """Those saved outside of a transaction: the member takes its membership with a new id before more is done.

    The broker refuses the late commit, because it names a member that is no more.
    """
    late = scene.proxy.hold("OffsetCommit")
    with framework(scene, "at_most_once"):
        for some in (FIRST, SECOND[:100]):
            scene.write(some)
            scene.await_written()
        assert late.caught, "the client went on without an answer to its first request"
        scene.history.fault("an OffsetCommit reaches the broker late")
        late.release()
        wait_until(lambda: late.answers, "the broker has answered the late request")
    assert FENCED_INSTANCE_ID.to_bytes(2, "big") in late.answers[0].body[4:]
    with framework(scene, "at_most_once"):
        scene.write(THIRD)
        scene.await_written()
        scene.await_read(THIRD[-1])
    assert scene.finished() == FIRST + SECOND[:100] + THIRD


@pytest.fixture(scope="module")
def copier(proxied: tuple[Cluster, Proxy], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One worker that goes on through all cells of the table."""
    scene = Scene(f"table-{uuid.uuid4().hex[:12]}", *proxied, tmp_path_factory.mktemp("table"))
    with framework(scene):
        scene.deliver_more()  # past the transaction in which the group begins
        yield scene


@pytest.mark.parametrize("fault", ["request lost", "response lost", "request doubled"])
@pytest.mark.parametrize(
    "api", ["InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
)
def test_exactly_once_lost_and_doubled_requests_change_nothing(
    api: str, fault: str, copier: Scene, proxy: Proxy
) -> None:
    """Each kind of request of a transaction: lost with its connection on the way there or back, or sent twice."""
    if api == "InitProducerId":  # there is one only after something else was lost
        proxy.drop("EndTxn", side="response", client=copier.client)
        copier.deliver_more()
    rule = disturb(proxy, api, fault, copier.client)
    copier.deliver_more()
    assert len(rule.caught) == 1
    assert copier.cluster.values(copier.target) == copier.written
    assert copier.cluster.committed(copier.group, copier.source) == {0: len(copier.written)}


def disturb(proxy: Proxy, api: str, fault: str, client: str) -> Rule:
    side, _, what = fault.partition(" ")
    assert side in ("request", "response")
    return (proxy.drop if what == "lost" else proxy.double)(api, side=side, client=client)


@pytest.mark.parametrize("fault", ["request lost", "response lost", "request doubled"])
def test_at_most_once_record_sent_again_is_there_once_as_its_producer_is_idempotent(
    fault: str, name: str, cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    """KS-10: who gets no answer cannot know, and need not: the broker knows the record by its sequence number."""
    cluster.create(name)
    producer = KafkaLog(through(proxy, tmp_path)).producer(AT_MOST_ONCE, Durability.COMMITTED, name)
    rule = disturb(proxy, "Produce", fault, name)
    producer.write([record(name, b"once")])
    producer.flush()
    producer.drop()
    assert len(rule.caught) == 1
    assert cluster.values(name) == [b"once"]


SMALL_BATCHES: Final = {"batch.num.messages": "3", "linger.ms": "0"}
"""Thirty records make ten requests, of which several are on their way together."""


@pytest.mark.parametrize("guarantee", Guarantee)
def test_first_batch_of_a_producer_that_its_broker_does_not_lead_yet_is_written_before_the_others(
    guarantee: Guarantee, name: str, cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    cluster.create(name)
    promise = PROMISES[guarantee]
    settings = through(proxy, tmp_path, kafka=SMALL_BATCHES)
    producer = KafkaLog(settings).producer(promise, Durability.COMMITTED, name)
    if promise.transactional:
        producer.init_transactions()
        producer.begin_transaction()
    refused = proxy.refuse(client=name)
    producer.write([record(name, b"%d" % number) for number in range(30)])
    producer.flush()
    if promise.transactional:
        producer.commit_transaction()
    producer.drop()
    assert (len(refused.caught), cluster.values(name)) == (1, [b"%d" % number for number in range(30)])


@pytest.mark.parametrize("transactional", [True, False])
def test_plain_client_reports_a_first_batch_as_delivered_that_is_lost(
    transactional: bool, name: str, cluster: Cluster, proxy: Proxy
) -> None:
    """Why a batch waits for the one before it: the broker takes any sequence number of an unknown producer."""
    cluster.create(name)
    own = {"transactional.id": name} if transactional else {"enable.idempotence": True}
    producer = ck.Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "client.id": name,
            "retry.backoff.ms": 50,
            **SMALL_BATCHES,
            **own,
        }
    )
    if transactional:
        producer.init_transactions(30)
        producer.begin_transaction()
    producer.list_topics(name, 10)
    failed: list[Any] = []
    refused = proxy.refuse(client=name)
    for number in range(30):
        producer.produce(name, b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    if transactional:
        producer.commit_transaction(30)
    assert (len(refused.caught), failed) == (1, [])
    assert cluster.values(name) == [b"%d" % number for number in range(3, 30)]


@pytest.mark.parametrize("fault", ["response lost", "request doubled"])
@pytest.mark.parametrize(("durability", "copies"), [(Durability.COMMITTED, 1), (Durability.LEADER, 2)])
def test_at_least_once_record_sent_again_is_there_once_if_the_producer_is_idempotent(
    fault: str, durability: Durability, copies: int, name: str, proxied: tuple[Cluster, Proxy], tmp_path: Path
) -> None:
    """KS-11: with acks=all it is, and the broker knows the record again by its sequence number."""
    cluster, proxy = proxied
    cluster.create(name)
    producer = KafkaLog(through(proxy, tmp_path)).producer(AT_LEAST_ONCE, durability, name)
    rule = disturb(proxy, "Produce", fault, name)
    producer.write([record(name, b"once")])
    producer.flush()
    producer.drop()
    assert len(rule.caught) == 1
    assert cluster.values(name) == [b"once"] * copies


def record(topic: str, value: bytes) -> Output:
    return topic, value, None, 0, None, None, 0, None
