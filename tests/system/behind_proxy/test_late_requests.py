"""Requests and responses that are late, lost or doubled between client and broker (truths 1 and 2; KS-10, KS-11).

A proxy before a real broker causes these faults. Each late request is tested twice: on kstreams_py, which delivers
once, and on a plain loop on the same client, which does not. So the faults are shown to be real.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck
import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.contracts import Output
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.testing import Anomaly, Expected, Kind, check, explain
from tests.clusters import open_cluster
from tests.system.harness import Cluster, running, wait_until
from tests.system.proxy import Proxy, Rule, Side
from tests.system.recorder import Recorder

SOCKET_TIMEOUT_MS: Final = 1_000
"""After this time a client considers a request lost, and sends it again on a new connection."""

INVALID_PRODUCER_EPOCH: Final = 47
FENCED_INSTANCE_ID: Final = 82


FIRST: Final = [b"%d" % i for i in range(100)]
SECOND: Final = [b"%d" % i for i in range(100, 1_200)] + [b"wait"]
"""More than one batch: when the worker processes the last record, it has written outputs of the same transaction."""

THIRD: Final = [b"%d" % i for i in range(1_200, 1_300)]


def settings_through(proxy: Proxy, directory: Path, **changed: Any) -> Settings:
    """Settings of a worker behind the proxy; the commit interval is longer than a test."""
    values = {"session_timeout_ms": 10_000, "transaction_timeout_ms": 8_000, "commit_interval_ms": 7_000}
    kafka = {"socket.timeout.ms": SOCKET_TIMEOUT_MS, **changed.pop("kafka", {})}
    return Settings.load(
        bootstrap_servers=proxy.bootstrap_servers, schema_directory=directory, kafka=kafka, **(values | changed)
    )


class Scene:
    """Two topics, a function that copies one to the other behind the proxy, and the history of the run."""

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
        self.reads = 0
        cluster.create(self.source, self.target)

    def close(self) -> None:
        self.recorder.close()

    def copy(self, value: bytes) -> bytes:
        """The processor's function: at the value `wait` it waits until the gate is open."""
        self.calls.append(value)
        if value == b"wait":
            self.waiting.set()
            assert self.gate.wait(30)
        return value

    def write(self, values: list[bytes]) -> None:
        """Writes to the source in one batch, so that a worker reads all of it or nothing."""
        producer = ck.Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "linger.ms": 1_000})
        for value in values:
            report: Callable[[object, Any], None] = self.history.on_delivery(sender="writer")
            producer.produce(self.source, value, b"key", on_delivery=report)
        assert producer.flush(30) == 0
        self.written += values

    def await_written(self) -> None:
        """Returns once the group has committed the offset after the last written record."""
        self.cluster.await_committed(self.group, self.source, {0: len(self.written)})

    def deliver_more(self, count: int = 20) -> None:
        self.write([b"%d" % i for i in range(len(self.written), len(self.written) + count)])
        self.await_written()

    def await_read(self, last: bytes) -> None:
        """Returns once a read_committed reader returns this output."""
        wait_until(lambda: last in self.cluster.values(self.target), f"{last!r} is delivered")

    def record_read(self) -> None:
        """Records what a read_committed reader returns now."""
        self.reads += 1
        self.history.read(f"reader {self.reads}", self.cluster.read(self.target))

    def read_to_end(self) -> list[bytes | None]:
        """Reads all delivered records, which ends the history."""
        for topic in (self.source, self.target):
            found = self.cluster.read(topic)
            self.history.final_read("last reader", topic, found, self.recorder.ends(topic, "read_uncommitted"))
        return [m.value() for m in found]

    def anomalies(self) -> list[Anomaly]:
        return check(self.history, [Expected(self.source, to=self.target)])

    def count_offset_commits(self) -> int:
        """The number of OffsetCommit requests so far, of all scenes."""
        return sum(frame.api == "OffsetCommit" for frame in list(self.proxy.seen))

    def list_requested_ends(self) -> list[str]:
        """The result that each EndTxn request of the worker asked for."""
        return ["commit" if f.body[-1] else "abort" for f in self.proxy.requests("EndTxn", self.client)]


@pytest.fixture
def scene(name: str, cluster: Cluster, proxy: Proxy, tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(name, cluster, proxy, tmp_path)) as scene:
        yield scene


@contextmanager
def framework(scene: Scene, guarantee: str = "exactly_once", **changed: Any) -> Iterator[None]:
    """Runs kstreams_py as the copier inside the block."""
    graph = ks.Graph(scene.name, guarantee=guarantee)
    graph.map(graph.topic(scene.source), to=graph.topic(scene.target), id="copy")(scene.copy)
    with running(graph, settings_through(scene.proxy, scene.directory, **changed)):
        yield


@contextmanager
def supervised_plain_loop(scene: Scene) -> Iterator[None]:
    """Runs a plain loop as the copier inside the block; after an error it is restarted, as by a supervisor."""
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
    """The usual loop of a transactional client: after an error, abort and seek back."""
    common = {"bootstrap.servers": scene.proxy.bootstrap_servers, "socket.timeout.ms": SOCKET_TIMEOUT_MS}
    producer = ck.Producer({**common, "client.id": scene.client, "transactional.id": scene.client, "linger.ms": 5})
    consumer = ck.Consumer(
        {**common, "group.id": scene.group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        producer.init_transactions(30)
        consumer.subscribe([scene.source])
        while not stopping.is_set():
            messages: list[Any] = consumer.consume(10_000, 0.1)
            if not messages:
                continue
            transaction = scene.history.begun(scene.client)
            producer.begin_transaction()
            try:
                for m in messages:
                    report: Callable[[object, Any], None] = scene.history.on_delivery(transaction, scene.client)
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


def run_with_late_request(api: str, scene: Scene, runner: Runner) -> Rule:
    """Runs a copier whose first request of this kind reaches the broker in the middle of the next transaction."""
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
    if api == "TxnOffsetCommit":  # only a restart reads the committed offsets
        with runner(scene):
            scene.write(THIRD)
            scene.await_read(THIRD[-1])
    return late


def deliver_among_the_outputs(late: Rule, scene: Scene) -> None:
    """Releases the late request while a transaction is open and some of its outputs are written."""
    scene.write(SECOND)
    wait_until(scene.waiting.is_set, "the function waits")
    written = len(FIRST) + 100
    wait_until(lambda: len(scene.cluster.read(scene.target, "read_uncommitted")) >= written, "outputs are written")
    late.release()
    wait_until(lambda: late.answers, "the broker has answered the late request")
    scene.record_read()
    scene.gate.set()


def deliver_before_the_end(late: Rule, scene: Scene) -> None:
    """Releases the late request while a transaction has its outputs and offsets, before its EndTxn arrives."""
    scene.gate.set()
    end = scene.proxy.hold("EndTxn", client=scene.client)
    scene.write(SECOND)
    wait_until(lambda: end.caught, "the end of the second transaction")
    late.release()
    wait_until(lambda: late.answers, "the broker has answered the late request")
    end.release()


@pytest.mark.parametrize(
    "api", ["EndTxn", "TxnOffsetCommit", pytest.param("AddPartitionsToTxn", marks=pytest.mark.long)]
)
def test_exactly_once_late_request_of_the_previous_transaction_changes_nothing(api: str, scene: Scene) -> None:
    """Truth 2: the request timed out, so a new producer, which fences it, wrote the second transaction."""
    late = run_with_late_request(api, scene, framework)
    assert_delivered_once(scene)
    assert INVALID_PRODUCER_EPOCH.to_bytes(2, "big") in late.answers[0].body[4:]


def assert_delivered_once(scene: Scene) -> None:
    assert scene.recorder.committed(scene.group, scene.source) == {0: len(scene.written)}
    assert scene.read_to_end() == scene.written
    assert not (found := scene.anomalies()), explain(found, scene.history)
    assert set(scene.list_requested_ends()) == {"commit"}


def kinds(scene: Scene) -> set[Kind]:
    return {anomaly.kind for anomaly in scene.anomalies()}


@pytest.mark.long  # nothing of the product runs: it shows that the fault is one
def test_plain_loop_late_end_txn_commits_a_part_of_the_next_transaction(scene: Scene) -> None:
    """KAFKA-17754: readers get outputs of a transaction that was aborted, or whose commit was not requested yet.

    The broker refuses the loop's later writes, as the transaction has ended; the loop repeats all of it.
    """
    run_with_late_request("EndTxn", scene, supervised_plain_loop)
    found = scene.read_to_end()
    repeated = len(found) - len(scene.written)
    assert repeated > 0
    assert found == FIRST + SECOND[:repeated] + SECOND
    assert kinds(scene) & {Kind.ABORTED_READ, Kind.PRECOMMITTED_READ}


@pytest.mark.long
def test_plain_loop_late_txn_offset_commit_is_committed_by_the_next_transaction(scene: Scene) -> None:
    """The group goes back to the offsets of the first transaction, so that a restart repeats the second.

    The broker accepts the late offsets once the next transaction has offsets of its own, and refuses them before.
    """
    run_with_late_request("TxnOffsetCommit", scene, supervised_plain_loop)
    assert scene.read_to_end() == FIRST + SECOND + SECOND + THIRD
    assert kinds(scene) == {Kind.DUPLICATE}


@pytest.mark.long
def test_plain_loop_late_add_partitions_to_txn_changes_nothing(scene: Scene) -> None:
    """The only harmless late request: the broker adds a partition that the next transaction has already."""
    run_with_late_request("AddPartitionsToTxn", scene, supervised_plain_loop)
    assert_delivered_once(scene)


@pytest.mark.parametrize("side", [pytest.param("request", marks=pytest.mark.long), "response"])
def test_exactly_once_commit_without_an_answer_is_not_aborted_and_delivers_once(side: Side, scene: Scene) -> None:
    """Truth 1: the committed offsets show whether the commit took place, and no client requests an abort."""
    with framework(scene, request_timeout_ms=2_500):
        scene.write(FIRST)
        scene.await_read(FIRST[-1])
        renewal = scene.proxy.hold("InitProducerId", client=scene.client)
        lost = scene.proxy.drop("EndTxn", side=side, client=scene.client, times=None, silent=True)
        scene.history.fault(f"each {side} of EndTxn is lost")
        scene.gate.set()
        scene.write(SECOND)
        wait_until(lambda: renewal.caught, "a new producer")
        lost.lift()
        renewal.release()
        scene.await_read(SECOND[-1])
        scene.write(THIRD)
        scene.await_read(THIRD[-1])
    assert_delivered_once(scene)
    assert scene.calls == (FIRST + SECOND + THIRD if side == "response" else FIRST + SECOND + SECOND + THIRD)


def test_exactly_once_fenced_worker_checks_its_membership_without_committing_offsets(scene: Scene) -> None:
    """A commit outside of a transaction could arrive late, and would set the group back."""
    with framework(scene):
        scene.write(FIRST)
        scene.await_written()
        committed = scene.count_offset_commits()
        scene.history.fault("another producer takes the transactional id")
        common = {"bootstrap.servers": scene.cluster.bootstrap_servers, "transactional.id": scene.client}
        ck.Producer(common).init_transactions(30)
        scene.write(THIRD)
        scene.await_written()
        assert scene.count_offset_commits() == committed
    assert_delivered_once(scene)


def test_at_most_once_late_offset_commit_does_not_set_the_group_back(scene: Scene) -> None:
    """Offsets committed outside of transactions: the member first takes its membership again with a new member id.

    The broker refuses the late commit, because it names the old member id.
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
    assert scene.read_to_end() == FIRST + SECOND[:100] + THIRD


@pytest.fixture(scope="module")
def copier(proxied: tuple[Cluster, Proxy], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One worker that runs through all cells of the table."""
    name = f"table-{uuid.uuid4().hex[:12]}"
    with closing(Scene(name, *proxied, tmp_path_factory.mktemp("table"))) as scene, framework(scene):
        scene.deliver_more()  # the group's first transaction is over
        yield scene


REQUESTS: Final = ("InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")
FAULTS: Final = ("request lost", "response lost", "request doubled")


@pytest.mark.parametrize(
    ("api", "fault"),
    # each request and each fault meets the same three answers of the client: sent again, or known, or stale
    [
        pytest.param(api, fault, marks=() if (n + m) % 3 == 0 else pytest.mark.long)
        for n, api in enumerate(REQUESTS)
        for m, fault in enumerate(FAULTS)
    ],
)
def test_exactly_once_lost_and_doubled_requests_change_nothing(
    api: str, fault: str, copier: Scene, proxy: Proxy
) -> None:
    """Each kind of request of a transaction is lost with its connection, loses its response, or is sent twice."""
    if api == "InitProducerId":  # sent only after another request was lost
        proxy.drop("EndTxn", side="response", client=copier.client)
        copier.deliver_more(1)  # a second transaction would send it before it is watched for
    rule = disturb(proxy, api, fault, copier.client)
    copier.deliver_more()
    assert len(rule.caught) == 1
    copier.cluster.await_markers(copier.target)
    assert copier.cluster.values(copier.target) == copier.written
    assert copier.cluster.committed(copier.group, copier.source) == {0: len(copier.written)}


def disturb(proxy: Proxy, api: str, fault: str, client: str) -> Rule:
    subject, _, event = fault.partition(" ")
    assert subject in ("request", "response")
    side: Side = "request" if subject == "request" else "response"
    return (proxy.drop if event == "lost" else proxy.double)(api, side=side, client=client)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_at_most_once_idempotent_producer_writes_a_resent_record_once(
    fault: str, name: str, cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    """KS-10: without an answer the client sends again, and the broker recognizes the record's sequence number."""
    cluster.create(name)
    producer = open_cluster(settings_through(proxy, tmp_path)).producer(
        producer_mode(Guarantee.AT_MOST_ONCE, Durability.COMMITTED), name
    )
    rule = disturb(proxy, "Produce", fault, name)
    producer.write([record(name, b"once")])
    producer.flush()
    producer.drop()
    assert len(rule.caught) == 1
    assert cluster.values(name) == [b"once"]


SMALL_BATCHES: Final = {"batch.num.messages": "3", "linger.ms": "0"}
"""Thirty records make ten requests, several of them in flight together."""


@pytest.mark.parametrize(
    "guarantee",
    # at most once has the producer of at least once
    [Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, pytest.param(Guarantee.AT_MOST_ONCE, marks=pytest.mark.long)],
)
def test_first_batch_answered_with_not_leader_is_written_before_those_behind_it(
    guarantee: Guarantee, name: str, cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    cluster.create(name)
    mode = producer_mode(guarantee, Durability.COMMITTED)
    settings = settings_through(proxy, tmp_path, kafka=SMALL_BATCHES)
    producer = open_cluster(settings).producer(mode, name)
    if mode.transactional:
        producer.init_transactions()
        producer.begin_transaction()
    refused = proxy.refuse(client=name)
    producer.write([record(name, b"%d" % number) for number in range(30)])
    producer.flush()
    if mode.transactional:
        producer.commit_transaction()
        cluster.await_markers(name)
    producer.drop()
    assert (len(refused.caught), cluster.values(name)) == (1, [b"%d" % number for number in range(30)])


@pytest.mark.long
@pytest.mark.parametrize("transactional", [True, False])
def test_plain_client_reports_a_lost_first_batch_as_delivered(
    transactional: bool, name: str, cluster: Cluster, proxy: Proxy
) -> None:
    """Why a batch waits for the one before it: the broker accepts any sequence number of an unknown producer."""
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


@pytest.mark.long
@pytest.mark.parametrize("fault", ["response lost", "request doubled"])
@pytest.mark.parametrize(("durability", "copies"), [(Durability.COMMITTED, 1), (Durability.LEADER, 2)])
def test_at_least_once_resent_record_is_written_once_only_by_an_idempotent_producer(
    fault: str, durability: Durability, copies: int, name: str, cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    """KS-11: with acks=all the producer is idempotent, and the broker recognizes the record's sequence number."""
    cluster.create(name)
    producer = open_cluster(settings_through(proxy, tmp_path)).producer(
        producer_mode(Guarantee.AT_LEAST_ONCE, durability), name
    )
    rule = disturb(proxy, "Produce", fault, name)
    producer.write([record(name, b"once")])
    producer.flush()
    producer.drop()
    assert len(rule.caught) == 1
    assert cluster.values(name) == [b"once"] * copies


def record(topic: str, value: bytes) -> Output:
    return topic, value, None, 0, None, None, 0, None
