"""The producers and consumers of the broker in memory, and the network between them, with its faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final, TypeVar, Union

from kstreams_py.errors import (
    Abortable,
    ClientError,
    KStreamsError,
    OutcomeUnknown,
    Refused,
    Replaced,
    Retriable,
    TopicError,
    Unavailable,
)
from kstreams_py.kafka.contracts import TOPIC, Consumer, Output, ProducerMode, Report
from kstreams_py.kafka.membership import Holder, Membership, Owner, StaticMembership, replaced
from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.testing.events import Isolation
from kstreams_py.testing.memory_broker import Broker, GroupMetadata, Heard, Stamp
from kstreams_py.testing.memory_records import Content, StoredMessage, as_read, milliseconds
from kstreams_py.testing.request_faults import Outage, RequestFault

CLIENT_MESSAGE_MAX: Final = 1_000_000
"""The largest record that the client accepts, in bytes, whatever its topic accepts (message.max.bytes)."""

SENDS_MAX: Final = 3
"""How many times in a row a producer sends a batch before it reports that there is no answer."""

T = TypeVar("T")
Client = Union["MemoryProducer", "MemoryConsumer", None]


class Network:
    """The network between clients and broker: delivers requests, loses or delays them, and makes time pass."""

    def __init__(self, broker: Broker, clock: Callable[[], float], linger: float, chance: Random | None = None) -> None:
        self.broker = broker
        self.clock = clock
        self.linger = linger
        self.queue_records = 100_000
        """The most records that a producer keeps while no broker answers."""
        self.value_bytes_max: int | None = None  # of records that consumers read
        self.chance = chance
        self.requests: list[str] = []
        self.watcher: Callable[[str, object], RequestFault | None] = lambda *_: None
        self.lingering: list[MemoryProducer] = []
        self.opened: dict[int, OpenTransaction] = {}
        """The newest transaction with offsets, by producer id."""
        self._faults: list[tuple[str, int, RequestFault]] = []
        self._outages: list[Outage] = []
        self._late: list[tuple[float, Callable[[], object]]] = []

    def inject(self, request: str, nth: int, fault: RequestFault) -> None:
        """Injects a fault into the nth request of a name ("" for any) from now on."""
        self._faults.append((request, nth, fault))

    def begin_outage(self, outage: Outage) -> None:
        """Begins an outage, in which some requests get no answer."""
        self._outages.append(outage)

    def outage(self, name: str) -> Outage | None:
        """Returns the outage that affects requests of this name now; None if there is none."""
        if not self._outages:
            return None
        now = self.clock()
        return next((outage for outage in self._outages if name in outage.requests and now < outage.until), None)

    def request(self, name: str, action: Callable[[], T], client: Client = None) -> T:
        """Lets time pass, then carries out a client's request, with its fault if it has one."""
        fault = self.watcher(name, client)
        self.pass_time()
        return self._carry(name, action, client, fault)

    def transport(self, name: str, action: Callable[[], T], client: Client) -> T:
        """Like `request`, but without letting time pass."""
        return self._carry(name, action, client, self.watcher(name, client))

    def _carry(self, name: str, action: Callable[[], T], client: Client, fault: RequestFault | None) -> T:
        self.requests.append(name)
        if self._faults:
            fault = self._due(name) or fault
        if fault is None and self._outages and (outage := self.outage(name)) is not None:
            fault = RequestFault(Retriable(f"{name}: no answer"), applied=outage.applied())
        if fault is None:
            return action()
        if fault.late is not None:
            self._late.append((self.clock() + fault.late, action))
            if isinstance(client, MemoryConsumer):
                client.taint(name)
            elif client is not None and not isinstance(fault.error, OutcomeUnknown):
                client.taint()
        if fault.applied:
            answer = action()
            if fault.error is None:
                return answer
        assert fault.error is not None
        raise fault.error

    def pass_time(self) -> None:
        """Lets the effects of time happen: late requests, lingering records, time-outs."""
        now = self.clock()
        if self._late:
            arriving = [action for at, action in self._late if at <= now]
            self._late = [(at, action) for at, action in self._late if at > now]
            for action in arriving:
                with suppress(KStreamsError):
                    action()
        if self.lingering:
            for producer in list(self.lingering):
                producer.send_if_due()
        if self._outages and self.outage("heartbeat") is not None:
            for group in self.broker.groups.values():  # no heartbeat arrives while a coordinator is unavailable
                group.keep(now)
        self.broker.pass_time(now)

    def _due(self, name: str) -> RequestFault | None:
        due, left = None, []
        for request, nth, fault in self._faults:
            if request not in ("", name):
                left.append((request, nth, fault))
            elif nth > 1:
                left.append((request, nth - 1, fault))
            else:
                due = fault
        self._faults = left
        return due


class MemoryProducer:
    """kafka.contracts.Producer in memory."""

    def __init__(self, network: Network, mode: ProducerMode, transactional_id: str) -> None:
        self._network = network
        self._retries = mode.may_repeat or mode.idempotent
        self._answered = mode.acks != 0
        self._id = transactional_id if mode.transactional else None
        self._producer_id = network.broker.next_id() if mode.idempotent else None
        self._epoch = 0 if self._id is None else -1
        self._sequences: dict[TopicPartition, int] = {}
        self._own_ids: dict[TopicPartition, int] = {}
        """Without transactions: the producer ids of partitions where a batch has failed; others keep the first id."""
        self._queue: list[tuple[str, int, Content]] = []
        self._queued_at = 0.0
        self._unanswered: dict[TopicPartition, list[list[Content]]] = {}
        """Batches without an answer, and the batches behind them. They are sent again unchanged."""
        self._failed: list[KStreamsError] = []
        self.lost = Counter[str]()
        self._reports: list[tuple[Content, Report]] = []
        """Records whose writers want to know the offset."""
        self._enlisted: set[TopicPartition | None] = set()
        self._open = self._ending_needed = self.tainted = False

    def taint(self) -> None:
        """Marks that a request of this producer may reach the broker late."""
        self.tainted = True

    def write(self, outputs: list[Output]) -> None:
        self._require_open()
        now, done = self._network.clock(), 0
        try:
            for output in outputs:
                self._await_space()
                topic, value, key, number, report, _, timestamp, headers = output
                done += 1
                content = Content(key, value, list(headers) if headers else None, timestamp or milliseconds(now))
                if (mistake := content.find_excess(topic, CLIENT_MESSAGE_MAX)) is not None:
                    raise Refused(mistake, [output])
                if not self._queue:
                    self._queued_at = now
                    self._network.lingering.append(self)
                self._queue.append((topic, number, content))
                if report is not None:
                    self._reports.append((content, report))
        finally:
            del outputs[:done]
        self._network.pass_time()

    def init_transactions(self) -> None:
        assert self._id is not None, "this producer is not transactional"
        self._start_sequences(
            *self._request("init_transactions", partial(self._network.broker.init_producer, self._id))
        )

    def begin_transaction(self) -> None:
        self._reports.clear()
        if self._epoch < 0 or self._open:
            raise OutcomeUnknown(f"{self._id}: not started, or a transaction is open already")
        self._failed.clear()
        self._enlisted.clear()
        self._ending_needed, self._open = False, True

    def send_offsets(self, positions: Positions, consumer: Consumer) -> None:
        assert isinstance(consumer, MemoryConsumer)
        self._require_open()
        self._raise_failed()
        assert self._id is not None
        self._network.pass_time()
        self._enlist(None)
        add = self._network.broker.add_positions
        request = partial(add, self._id, self._epoch, dict(positions), consumer.group_metadata())
        self._request("send_offsets", request)

    def commit_transaction(self) -> None:
        self._require_open()
        self._send()
        self._raise_failed()
        if self._unanswered:
            raise Abortable(f"{self._id}: batches to {', '.join(map(str, self._unanswered))} are not acknowledged")
        self._request("commit_transaction", self._ending(commits=True))
        self._open = False

    def abort_transaction(self) -> None:
        self._require_open()
        assert self._id is not None
        if self._unanswered:
            raise OutcomeUnknown(f"{self._id}: batches were neither sent nor refused before the abort")
        self._purge()
        self._request("abort_transaction", self._ending(commits=False))
        if self._failed and self._ending_needed:
            self._start_sequences(*self._network.broker.init_producer(self._id))
        self._failed.clear()
        self._open = False

    def flush(self) -> None:
        self._send()
        if self._id is not None:
            self._raise_failed()  # the errors are kept: the abort that follows begins new sequences
        failed, self._failed = self._failed, []
        if refused := [error for error in failed if isinstance(error, Refused)]:
            self._failed = [error for error in failed if not isinstance(error, Refused)]
            outputs = [output for error in refused for output in error.outputs]
            self.lost.subtract(output[TOPIC] for output in outputs)
            raise Refused(refused[0].mistake, outputs)
        if failed:
            raise failed[0]
        if self._unanswered:
            raise Retriable(f"batches to {', '.join(map(str, self._unanswered))} wait for their acknowledgement")

    def drop(self) -> None:
        self.lost.update(self._unacknowledged)
        self._purge()
        self._unanswered = {}

    def send_if_due(self) -> None:
        """Sends the queue if it has lingered for long enough."""
        if self._network.clock() - self._queued_at >= self._network.linger:
            self._send()

    def _await_space(self) -> None:
        """Sends the queue if it is full. Raises if it stays full because there is no answer."""
        if not self._unanswered or len(self._unacknowledged) < self._network.queue_records:
            return
        self._send()
        if len(self._unacknowledged) >= self._network.queue_records:
            raise (Abortable if self._id is not None else Retriable)("the producer's queue stayed full")

    @property
    def _unacknowledged(self) -> list[str]:
        sent = (tp.topic for tp, batches in self._unanswered.items() for batch in batches for _ in batch)
        return [*(topic for topic, *_ in self._queue), *sent]

    def _send(self) -> None:
        """Sends the queue, a batch to each partition. Keeps errors for the next call that can raise them."""
        batches: dict[TopicPartition, list[Content]] = {}
        for name, number, content in self._queue:
            try:
                topic = self._network.broker.topic(name)
                tp = TopicPartition(name, topic.partition_for(content.key) if number < 0 else number)
                batches.setdefault(self._network.broker.partition(tp).name, []).append(content)
            except TopicError as error:
                self._fail(error, name, 1)
        self._purge()
        for tp, batch in batches.items():
            self._unanswered.setdefault(tp, []).append(batch)
        for tp in list(self._unanswered):
            if self._id is not None and self._failed:
                self._unanswered = {}  # the transaction can only be aborted
                break
            self._send_batches(tp)

    def _send_batches(self, tp: TopicPartition) -> None:
        """Sends the batches of a partition, in order, until one gets no answer."""
        batches = self._unanswered[tp]
        while batches and self._send_batch(tp, batches[0]):
            del batches[0]
        if not batches:
            self._unanswered.pop(tp, None)

    def _send_batch(self, tp: TopicPartition, batch: list[Content]) -> bool:
        """Sends a batch; returns whether there was an answer, which may be an error."""
        sequence = self._sequences.get(tp, 0)
        own = self._own_ids.get(tp, self._producer_id)
        stamp = None if own is None else Stamp(own, self._epoch, sequence)
        produce = partial(self._network.broker.produce, tp, batch, stamp, self._id, now=self._network.clock())
        for _ in range(SENDS_MAX):
            try:
                self._enlist(tp)
                first = self._network.transport("produce", produce, self)
                if self._reports:
                    self._report(tp, batch, first)
                self._sequences[tp] = sequence + len(batch)
                return True
            except Retriable as error:
                if self._retries:
                    continue
                failure: KStreamsError = Abortable(f"writing to {tp}: {error}")
            except KStreamsError as error:
                failure = error
            if self._answered:
                self._fail(failure, tp.topic, len(batch))
            if self._id is None and self._producer_id is not None:
                # it is not known whether a failed batch was written (KIP-360): the next one begins a new sequence
                self._own_ids[tp] = self._network.broker.next_id()
                self._sequences.pop(tp, None)
            return True
        return False

    def _fail(self, error: KStreamsError, topic: str, records: int) -> None:
        self._failed.append(error)
        self.lost[topic] += records  # until they are returned

    def _report(self, tp: TopicPartition, batch: list[Content], first: int) -> None:
        """Tells the writers of a batch where it was written."""
        for offset, content in enumerate(batch, first):
            for waiting in [each for each in self._reports if each[0] is content]:
                self._reports.remove(waiting)
                waiting[1](None, StoredMessage(tp, offset, content))

    def _start_sequences(self, producer_id: int, epoch: int) -> None:
        """Begins all sequences at 0, with a new epoch."""
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()

    def _enlist(self, partition: TopicPartition | None) -> None:
        """Adds a partition (None: offsets) to the transaction, unless the transaction has it already."""
        if self._id is None or partition in self._enlisted:
            return
        self._ending_needed = True
        enlist = partial(self._network.broker.enlist, self._id, self._epoch, partition, self._network.clock())
        self._network.transport("add_offsets" if partition is None else "add_partition", enlist, self)
        self._enlisted.add(partition)
        assert self._producer_id is not None
        self._network.opened[self._producer_id] = OpenTransaction(
            self._producer_id, self._epoch, -1, 0, self._network.clock(), self._id, hangs=False
        )

    def _ending(self, *, commits: bool) -> Callable[[], None]:
        """Returns the request that ends the transaction. It does nothing if the broker cannot know the transaction."""
        if not self._ending_needed:
            return lambda: None
        assert self._id is not None
        return partial(self._network.broker.end_transaction, self._id, self._epoch, commits=commits)

    def _request(self, name: str, action: Callable[[], T]) -> T:
        return self._network.request(name, action, self)

    def _require_open(self) -> None:
        if self._id is not None and not self._open:
            raise OutcomeUnknown(f"{self._id}: no transaction is open")

    def _raise_failed(self) -> None:
        if self._failed:
            raise self._failed[0]

    def _purge(self) -> None:
        if self._queue:
            self._queue = []
            self._network.lingering.remove(self)


class MemoryConsumer:
    """kafka.contracts.Consumer in memory: a static member of its group, which behaves as librdkafka does.

    A member whose session has timed out forgets its member id and joins again, which takes the membership from its
    holder. Like kafka/, it first asks the group for the holder; but a member without partitions joins again
    without asking, because the client does not report that its session has timed out.
    """

    def __init__(self, network: Network, group: str, instance_id: str, metadata_age: float = 0.0) -> None:
        """Creates a consumer. `metadata_age`: seconds after which it asks again for the partitions of its topics."""
        self.ends: Positions = {}
        self.highs: Positions = {}
        self.tainted = False
        self._network = network
        self._group = network.broker.group(group)
        self._instance_id = instance_id
        self._member = 0
        self._membership = StaticMembership(group, instance_id, "", network.broker.session_timeout, self._find_holder)
        self._generation = -1
        self._joins = False
        """Whether it is joining and has no answer yet."""
        self._lost = False
        """Whether the membership is lost: this member asks the group for the holder before it joins again."""
        self._heard = 0.0
        """The time of the group's last answer."""
        self._fenced = False
        """Whether a heartbeat was refused, because another member holds the membership."""
        self._topics: tuple[str, ...] = ()
        self._counts: dict[str, int] = {}
        """The number of partitions of each topic, as this client knows it."""
        self._counted = 0.0
        self._metadata_age = metadata_age
        self._on_assigned: Callable[[set[TopicPartition]], None] = lambda _: None
        self._on_revoked: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None
        self._positions: Positions = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._rebalances = 0

    def taint(self, request: str) -> None:
        """Marks that a request of this member may reach the group late, if it is a commit."""
        self.tainted |= request == "commit"

    def subscribe(
        self,
        topics: Collection[str],
        assigned: Callable[[set[TopicPartition]], None],
        revoked: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._topics, self._on_assigned, self._on_revoked, self._on_lost = tuple(topics), assigned, revoked, lost
        self._forget_old_assignment()
        self._join()

    def _forget_old_assignment(self) -> None:
        """Ends the membership that this member takes over, unless the group's assignment is exactly all partitions."""
        held = self._group.static_members.get(self._instance_id)
        assigned = {tp for instance_id in self._group.static_members.values() for tp in instance_id.partitions}
        if held is not None and assigned != {
            TopicPartition(name, number) for name, count in self._count().items() for number in range(count)
        }:
            self._group.leave(self._instance_id, held.member)

    def _join(self) -> None:
        """Joins as a new member; without an answer, the next `consume` joins again."""
        self._membership.joining = self._joins = True
        self._generation, self._positions = -1, {}
        counts = self._count()

        def join() -> int:
            return self._group.join(self._instance_id, self._topics, self._network.clock())

        with suppress(ClientError):
            self._member = self._request("subscribe", join)
            self._joins, self._fenced, self._heard, self._counts = False, False, self._network.clock(), counts

    def rejoin(self) -> None:
        self.tainted = self._lost = False
        if self._topics:
            self._forget_old_assignment()
            self._join()

    def assign(self, positions: Positions) -> None:
        self._positions = dict(positions)
        self._paused = frozenset()
        self.ends.clear()

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        del timeout  # nothing can come while the only thread waits
        if self._lost and not self._join_again():
            return []
        return self._request("consume", lambda: self._consume(limit))

    def _join_again(self) -> bool:
        """Joins again unless another member may hold the membership: then returns False. Raises Replaced."""
        try:
            owner, holder = self._request("membership", self._ask_before_joining_again)
        except (ClientError, Unavailable):
            return False
        if owner is Owner.ANOTHERS:
            raise replaced(self._instance_id, holder)
        if owner is Owner.UNSURE:
            return False
        self.rejoin()
        return True

    def _consume(self, limit: int) -> list[Message]:
        before = self._rebalances
        if self._topics:
            self._keep_membership()
        if self._rebalances != before:
            return []
        order, chance = list(self._positions), self._network.chance
        if chance is not None:  # partitions in the order of arrival, and as many records as have arrived
            order = chance.sample(sorted(order), chance.randint(0, len(order)))
            limit = chance.choice((1, 3, limit))
        found: list[Message] = []
        for tp in order:
            if tp not in self._paused:
                found += self._fetch(tp, limit - len(found))
            if len(found) >= limit:
                break
        self.highs = {tp: self._network.broker.partition(tp).end for tp in self.ends}
        return [as_read(m, self._network.value_bytes_max) for m in found]

    def heartbeat(self) -> None:
        """Sends a heartbeat, as the client's own thread does while its user is busy, so that the session continues."""
        if not self._joins and not self._lost and self._network.outage("heartbeat") is None:
            try:
                if self._group.hear(self._instance_id, self._member, self._network.clock()) is not Heard.UNKNOWN:
                    self._heard = self._network.clock()
            except Replaced:
                self._fenced = True

    def _keep_membership(self) -> None:
        """Does the client's work for its membership: heartbeats, rebalances, joining again."""
        broker = self._network.broker
        for topic in self._topics:
            broker.topic(topic)
        if self._joins:
            self._join()
        if self._joins or self._lost or not self._is_heard():
            return
        if not self._group.is_stable:
            self._group.deal({name: len(topic.partitions) for name, topic in broker.topics.items()})
        if self._group.is_stable and self._generation != self._group.generation:
            self._generation = self._group.generation
            self._rebalances += 1
            self._positions = {}
            self._membership.member, self._membership.joining = str(self._member), False
            self._on_assigned(set(self._group.static_members[self._instance_id].partitions))

    def _is_heard(self) -> bool:
        """Sends a heartbeat; joins the next generation if there is one. Returns whether the group knows this member."""
        now, timeout = self._network.clock(), self._network.broker.session_timeout
        if self._network.outage("heartbeat") is not None:
            if now - self._heard > timeout:
                self._lose()
            return False
        if now - self._heard > timeout and self._generation < 0 and not self._fenced:
            self._join()  # without partitions: the client does not report that its session has timed out
        try:
            heard = self._group.hear(self._instance_id, self._member, now)
        except Replaced:
            self._lose()
            return False
        if heard is Heard.UNKNOWN or now - self._heard > timeout:
            self._lose()
            return False
        self._heard = now
        grown = self._has_grown(now)  # a member that is not the leader joins again, and keeps its partitions
        if grown and self._group.leader == self._instance_id:
            self._group.rebalance()
        if grown or heard is Heard.REBALANCING:
            return self._join_generation()
        return True

    def _join_generation(self) -> bool:
        """Joins the next generation. Returns False if the group has forgotten this member."""
        if self._generation >= 0:
            self._positions = {}
            self._rebalances += 1
            self._membership.joining = True
            self._on_revoked()
        self._generation = -1
        if self._lost or self._group.hear(self._instance_id, self._member, self._heard) is Heard.UNKNOWN:
            return False
        self._group.rejoin(self._instance_id)
        return True

    def _lose(self) -> None:
        """Records that the membership is lost: another member holds it, or the session has timed out."""
        self._lost, self._generation, self._positions = True, -1, {}
        self._rebalances += 1
        self._on_lost()

    def _count(self) -> dict[str, int]:
        topics = self._network.broker.topics
        return {name: len(topics[name].partitions) for name in self._topics if name in topics}

    def _has_grown(self, now: float) -> bool:
        """Returns whether the numbers of partitions have changed; asks the broker if the known ones are old."""
        known = self._counts
        if now - self._counted >= self._metadata_age:
            self._counts, self._counted = self._count(), now
        return known != self._counts

    def _fetch(self, tp: TopicPartition, limit: int) -> list[Message]:
        """Returns the next records of a partition, and moves the partition to the end of the order of fetching."""
        partition = self._network.broker.partition(tp)
        position = self._positions[tp]
        partition.check(position)
        found: list[Message] = []
        for m in partition.read(position, Isolation.COMMITTED) if position < partition.stable else ():
            if len(found) == limit:
                break
            found.append(m)
            position = m.offset() + 1
        else:
            self.ends[tp] = position = max(position, partition.stable)
        if found:
            del self._positions[tp]
        self._positions[tp] = position
        return found

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        return {tp: offset for tp, (offset, _) in self.noted(partitions).items()}

    def noted(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        found = self._request("committed", lambda: self._network.broker.committed(self._group.name, partitions))
        return {tp: (offset, self._group.notes.get(tp, "")) for tp, offset in found.items()}

    def commit(self, positions: Positions, notes: Mapping[TopicPartition, str] | None = None) -> None:
        membership = self.group_metadata()
        try:
            self._request("commit", lambda: self._group.commit(positions, membership, notes))
        except Replaced as replaced:
            self._lose()
            raise Abortable(str(replaced)) from None

    def membership(self) -> Membership:
        return self._request("membership", lambda: self._membership.ask(self._known_member()))

    def _ask_before_joining_again(self) -> Membership:
        return self._membership.ask_before_joining_again(self._known_member(), self._network.clock())

    def _find_holder(self, _: str, instance_id: str) -> Holder | None:
        held = self._group.static_members.get(instance_id)
        return None if held is None else Holder(str(held.member), "another member", "memory", self._group.is_stable, 0)

    def _known_member(self) -> str:
        """Returns the member id; "" while a join has no answer."""
        return "" if self._joins else str(self._member)

    def group_metadata(self) -> GroupMetadata:
        """Returns the group metadata for a commit, as this member knows it."""
        return GroupMetadata(self._group.name, self._instance_id, self._member, self._generation)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused = frozenset(partitions)

    def close(self) -> None:
        self._positions = {}

    def give_up(self) -> bool:
        """Leaves the group; returns whether this member held the membership."""
        return self._group.leave(self._instance_id, self._member)

    def _request(self, name: str, action: Callable[[], T]) -> T:
        return self._network.request(name, action, self)
