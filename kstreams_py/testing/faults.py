"""Faults of a cluster in memory: requests that fail or arrive late or twice, outages, deleted topics and offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kstreams_py.records import TopicPartition
from kstreams_py.testing.memory_clients import Network
from kstreams_py.testing.memory_markers import Marker
from kstreams_py.testing.request_faults import Outage, RequestFault


class Faults:
    """Injects faults into one MemoryCluster."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def requests(self) -> Sequence[str]:
        """The names of all requests so far, in order."""
        return self._network.requests

    def watch(self, watcher: Callable[[str, object], RequestFault | None]) -> None:
        """Calls `watcher` before each request with its name and its producer or consumer (None: the cluster itself).

        The watcher may move the clock, run other workers meanwhile, or return a fault for this request. If it raises,
        the request is not made.
        """
        self._network.watcher = watcher

    def inject(
        self,
        request: str,
        *,
        nth: int = 1,
        error: BaseException | None = None,
        applied: bool = True,
        late: float | None = None,
    ) -> None:
        """Injects a fault into the nth request of a name from now on.

        - `request`: a name in `requests`, or "" for any.
        - `error`: raised in the caller; required for a lost request.
        - `applied`: whether the request is carried out or lost.
        - `late`: seconds after which the request reaches the broker (once more); its producer is then tainted.

        Requests have the names of the calls, with exceptions: `write` makes a "produce" for each batch to a partition.
        A transaction makes an "add_partition" for each partition, and an "add_offsets" before its first offsets. A
        client with retries repeats a "produce" or "add_partition" after a Retriable error; other errors fail the batch.
        """
        self._network.inject(request, nth, RequestFault(error, applied, late))

    def begin_outage(
        self, seconds: float, requests: Collection[str], applied: Callable[[], bool] = lambda: False
    ) -> None:
        """Makes requests of these names raise Retriable for `seconds`.

        - `applied`: called for each request; returns whether it is carried out.

        With "heartbeat", the groups are unavailable to their members: no session ends, and no rebalance happens.
        """
        self._network.begin_outage(Outage(self._network.clock() + seconds, frozenset(requests), applied))

    def limit_queues(self, records: int) -> None:
        """Makes `write` raise once a producer has this many records without an answer, as librdkafka's queue does."""
        self._network.queue_records = records

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic and the committed offsets of its partitions."""
        self._network.pass_time()
        self._network.broker.delete_topic(topic)

    def forget_positions(self, group: str) -> None:
        """Deletes a group's committed offsets, as a broker does after the group had no members for too long."""
        self._network.pass_time()
        self._network.broker.group(group).positions.clear()

    def hold_markers(self, partition: TopicPartition) -> None:
        """Holds back the markers of a partition until they are released. POSITIONS stands for the committed offsets.

        Until then, the transaction is open in this partition alone, and its producer begins no other one.
        """
        self._network.broker.markers.hold(partition)

    def release_markers(self, partition: TopicPartition) -> None:
        """Writes the markers of a partition that were held back."""
        self._network.broker.markers.release(partition)

    def skip_markers(self, *partitions: TopicPartition) -> None:
        """From now on, writes no markers to these partitions: transactions hang there. POSITIONS: see hold_markers."""
        self._network.pass_time()
        self._network.broker.markers.skipped = set(partitions)

    def end_hanging(self, transactional_id: str, partition: TopicPartition, *, commits: bool) -> None:
        """Writes the marker that a partition did not get, as an operator does."""
        self._network.pass_time()
        (mine,) = [each for each in self._network.opened.values() if each.transactional_id == transactional_id]
        self._network.broker.markers.write(partition, Marker(mine.producer_id, commits))
