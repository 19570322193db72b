"""brokers.py: which broker is away, by the reasons that librdkafka and this package give."""

from __future__ import annotations

from kstreams_py.running.http.brokers import BrokerOutage, WorkerWaiting, find_outages
from tests.tables import each_case

CONNECT = "Connect to ipv4#10.0.0.7:9092 failed: Connection refused (after 0ms in state CONNECT)"
NONE = "no Kafka broker answers at {}: start one (`kstreams broker start`), correct --bootstrap-servers"

REASONS = {
    "a connection": (f"h:9092/2: {CONNECT}", "broker 2 at h:9092 does not answer"),
    "a connection with TLS": (f"sasl_ssl://k-1.my:9093/12: {CONNECT}", "broker 12 at k-1.my:9093 does not answer"),
    "a connection by IPv6": (f"[::1]:9092/1: {CONNECT}", "broker 1 at [::1]:9092 does not answer"),
    "the first connection": (f"h:9092/bootstrap: {CONNECT}", "the broker at h:9092 does not answer"),
    "a coordinator": (f"committing: TxnCoordinator: h:9092: {CONNECT}", "the broker at h:9092 does not answer"),
    "no broker, with the newest connection": (
        f"{NONE.format('a:1,b:2')}; newest error of a connection: b:2/3: {CONNECT}",
        "broker 3 at b:2 does not answer",
    ),
    "no broker at all": (
        "no Kafka broker answers at h:9092 (Connection refused): start one",
        "the broker at h:9092 does not answer",
    ),
    "no broker": (NONE.format("h:9092"), "the broker at h:9092 does not answer"),
    "none of several brokers": (NONE.format("a:1,b:2"), "no broker at a:1,b:2 answers"),
    "another cluster": (
        f"cluster 'west': {NONE.format('w:1')}; newest error of a connection: w:1/1: {CONNECT}",
        "cluster 'west': broker 1 at w:1 does not answer",
    ),
    "another cluster, unnamed": (
        "cluster 'west': committing: timed out",
        "cluster 'west': a broker does not answer (committing: timed out)",
    ),
    "a time-out": ("committing: timed out", "a broker does not answer (committing: timed out)"),
    "no reason, as with http_errors=false": ("", "a broker does not answer"),
    "a record's own text": ("reading /x:1/2: no", "a broker does not answer (reading /x:1/2: no)"),
}  # fmt: skip


@each_case("what", REASONS)
def test_broker_is_named_by_the_reason(what: str) -> None:
    why, expected = REASONS[what]
    waiting = WorkerWaiting(0, "price", why)
    assert find_outages([waiting]) == [BrokerOutage(expected, (waiting,))]


def test_nothing_is_away_where_no_worker_waits() -> None:
    assert find_outages([]) == []


def test_worker_whose_reason_names_no_broker_waits_for_the_only_one_that_is_away() -> None:
    timed_out, refused = (
        WorkerWaiting(0, "price", "committing: timed out"),
        WorkerWaiting(1, "count", f"h:9092/2: {CONNECT}"),
    )
    assert find_outages([timed_out, refused]) == [
        BrokerOutage("broker 2 at h:9092 does not answer", (timed_out, refused))
    ]
    other = WorkerWaiting(0, "ship", f"g:9092/1: {CONNECT}")
    assert find_outages([timed_out, refused, other]) == [
        BrokerOutage("a broker does not answer (committing: timed out)", (timed_out,)),
        BrokerOutage("broker 2 at h:9092 does not answer", (refused,)),
        BrokerOutage("broker 1 at g:9092 does not answer", (other,)),
    ]


def test_broker_is_one_whether_its_id_is_known_or_not() -> None:
    workers = [
        WorkerWaiting(0, "price", f"h:9092/bootstrap: {CONNECT}"),
        WorkerWaiting(0, "count", f"h:9092/2: {CONNECT}"),
        WorkerWaiting(1, "price", NONE.format("h:9092")),
    ]
    assert find_outages(workers) == [BrokerOutage("broker 2 at h:9092 does not answer", tuple(workers))]


def test_clusters_are_kept_apart() -> None:
    here, west = (
        WorkerWaiting(0, "price", f"h:9092/2: {CONNECT}"),
        WorkerWaiting(0, "copy", "cluster 'west': timed out"),
    )
    assert find_outages([here, west]) == [
        BrokerOutage("broker 2 at h:9092 does not answer", (here,)),
        BrokerOutage("cluster 'west': a broker does not answer (timed out)", (west,)),
    ]
