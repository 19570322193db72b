"""Requests that confluent-kafka cannot make: list and remove static members, find the open transactions of a partition.

kafka-python makes them. The first request imports it: that takes 0.3 s, and a worker that starts does not need it.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from kstreams_py.errors import BrokerUnavailable, Fatal, KStreamsError, UserMistake
from kstreams_py.kafka.contact import contacting, no_answer
from kstreams_py.kafka.credentials.sign_in import SignIn
from kstreams_py.kafka.credentials.tokens import ASK_SECONDS, TokenSource
from kstreams_py.kafka.groups import POSITIONS_TOPIC, GroupInfo, GroupOffsets, Member, Pending, positions_partition
from kstreams_py.kafka.transactions import Coordinated, OpenTransaction, Writer, match
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.settings import Settings

T = TypeVar("T")

ATTEMPTS: Final = 3
"""How many unanswered attempts fit into the limit: each has a new client, and waits for no more than its share."""

PAUSE_SECONDS: Final = 0.1
"""Seconds between two attempts: a coordinator that is moving or loading answers a moment later."""

_IMPORTING: Final = threading.Lock()
"""Held during the import: its modules import each other, so another thread could get a half-imported module."""


def connection(settings: Settings) -> dict[str, Any]:
    """Returns kafka-python's settings for the same brokers and credentials as librdkafka's.

    Raises SettingsError for a security setting without a counterpart: it must not be left out silently.
    """
    servers = [part.strip() for part in settings.bootstrap_servers.split(",")]
    return {"bootstrap_servers": servers, **SignIn(settings.kafka).of_kafka_python()}


def import_kafka() -> None:
    """Imports kafka-python without its warnings: it uses deprecated parts of Python."""
    with _IMPORTING:
        if "kafka.admin" not in sys.modules:
            with warnings.catch_warnings(action="ignore"):
                import kafka.admin  # noqa: F401, PLC0415
        from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415

        AbstractTokenProvider.register(TokenSource)


class Requests:
    """Makes requests with kafka-python.

    Each request raises BrokerUnavailable if no broker answers in time or one refuses it, and Fatal for other errors.
    """

    def __init__(self, settings: Settings, limit: float | None = None) -> None:
        """`limit`: seconds that a request may take; None for request_timeout_ms."""
        self._connection = connection(settings)
        self._address = settings.bootstrap_servers
        self._limit = limit or settings.request_timeout_ms / 1000

    def ask(self, doing: str, needs: str, call: Callable[[Any], T]) -> T:
        """Makes a request in its own thread, and returns the answer. A thread that exceeds the limit is left behind.

        - `doing`: describes the request in messages.
        - `needs`: the right that the request needs.
        """
        import_kafka()
        from kafka import errors  # noqa: PLC0415

        answers: list[T] = []
        failures: list[Exception] = []
        deadline = time.monotonic() + self._limit

        def run() -> None:
            try:
                answers.append(self._attempt(call, deadline))
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, name=doing, daemon=True)
        with contacting(self._address, self._limit):
            thread.start()
            thread.join(self._limit)
            for error in failures:
                raise self._explain(error, doing, needs) if isinstance(error, errors.KafkaError) else error from None
            if not answers:
                raise self._unanswered(doing)
        return answers[0]

    def _attempt(self, call: Callable[[Any], T], deadline: float) -> T:
        """Makes a request with a new client, and repeats it while it fails with a retriable error."""
        from kafka import errors  # noqa: PLC0415
        from kafka.admin import KafkaAdminClient  # noqa: PLC0415

        if (tokens := self._connection.get("sasl_oauth_token_provider")) is not None:
            tokens.get(
                min(ASK_SECONDS, self._limit - PAUSE_SECONDS)
            )  # the client would only say that it found no broker
        share = self._limit / ATTEMPTS
        while True:
            limit = max(1, int(min(share, deadline - time.monotonic() - PAUSE_SECONDS) * 1000))
            # in two steps: a client whose __init__ fails also has a thread, and has to be closed
            client: Any = KafkaAdminClient.__new__(KafkaAdminClient)
            try:
                client.__init__(**self._connection, bootstrap_timeout_ms=limit, request_timeout_ms=limit)
                return call(client)
            except errors.KafkaError as error:
                if not error.retriable or time.monotonic() + 2 * PAUSE_SECONDS > deadline:
                    raise
            finally:
                client._closed = False  # a client that found no broker counts as closed, but its thread runs
                client.close()
            time.sleep(PAUSE_SECONDS)

    def _explain(self, error: Any, doing: str, needs: str) -> Exception:
        """Maps an error of kafka-python to an exception with a remedy."""
        from kafka import errors  # noqa: PLC0415

        if isinstance(error, errors.AuthorizationError):
            return BrokerUnavailable(
                f"{doing}: the broker at {self._address} does not allow it ({error}): grant this user {needs}",
                may_return=False,
            )
        return self._unanswered(f"{doing} ({error})") if error.retriable else Fatal(f"{doing}: {error}")

    def _unanswered(self, doing: str) -> BrokerUnavailable:
        details = f"within {self._limit:g} s, there was no answer to: {doing}"
        return BrokerUnavailable(no_answer(self._address, details))


class GroupAdmin(Requests):
    """Makes requests about groups, and about the transactions that hold their offsets."""

    def describe(self, groups: Collection[str]) -> dict[str, GroupInfo]:
        """Returns the groups with their members. A group that does not exist is "Dead" and has no members."""

        def ask(client: Any) -> dict[str, GroupInfo]:
            found = client.describe_groups(list(groups))
            return {group: _group_info(found[group]) for group in groups}

        return self.ask(f"describing groups {', '.join(map(repr, groups))}", "DESCRIBE on the groups", ask)

    def members(self, group: str) -> tuple[Member, ...]:
        """Returns the members of one group."""
        return self.describe([group])[group].members

    def remove(self, group: str, members: Mapping[str, str]) -> dict[str, bool]:
        """Removes static members (member ids by group.instance.id), and returns whether each existed.

        The coordinator removes a member only if its member id holds the instance id now. With an empty member id, it
        removes any member that holds the instance id.
        """

        def ask(client: Any) -> dict[str, bool]:
            from kafka import errors  # noqa: PLC0415
            from kafka.admin import MemberToRemove  # noqa: PLC0415

            asked = [
                MemberToRemove(member_id=member_id or None, group_instance_id=instance)
                for instance, member_id in members.items()
            ]
            answers = client.remove_group_members(group, asked)
            found = {instance: answers[member_id or instance] for instance, member_id in members.items()}
            for error in found.values():
                if error not in (errors.NoError, errors.UnknownMemberIdError, errors.FencedInstanceIdError):
                    raise error
            return {instance: error is errors.NoError for instance, error in found.items()}

        return self.ask(f"removing members of group {group!r}", "READ on the group", ask) if members else {}

    def delete(self, group: str) -> None:
        """Deletes a group with its committed offsets. A group that does not exist counts as deleted.

        Raises UserMistake if the group has members.
        """

        def ask(client: Any) -> None:
            from kafka import errors  # noqa: PLC0415

            answer = client.delete_groups([group])[group]
            if answer == errors.NonEmptyGroupError.__name__:
                raise UserMistake(f"group {group!r} has members: stop these workers: nothing was changed")
            if answer not in ("OK", errors.GroupIdNotFoundError.__name__):  # kafka-python returns the name of the error
                raise getattr(errors, answer, errors.UnknownError)(group)

        self.ask(f"deleting group {group!r}", "DELETE on the group", ask)

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        """See contracts.Cluster; if the transactions cannot be listed, `unknown` has the reason."""
        pinned = self.unstable(group, partitions)
        if not pinned:
            return Pending(group, ())
        kept_in = None
        try:
            kept_in = self.positions_partition(group)
            return Pending(group, pinned, kept_in, self.open_transactions(kept_in))
        except KStreamsError as error:
            return Pending(group, pinned, kept_in, unknown=str(error))

    def unstable(self, group: str, partitions: Collection[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Returns the partitions whose offset is pending in a transaction."""
        return self._ask_offsets(group, lambda client: _fetch_offsets(client, group, partitions, stable=True)[1])

    def offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        """See contracts.Cluster. Each answer shows one moment; if offsets are pending, a second request gets them."""

        def ask(client: Any) -> GroupOffsets:
            committed, pending = _fetch_offsets(client, group, partitions, stable=True)
            if pending:
                committed = _fetch_offsets(client, group, partitions, stable=False)[0]
            return GroupOffsets(committed, frozenset(pending))

        return self._ask_offsets(group, ask)

    def _ask_offsets(self, group: str, call: Callable[[Any], T]) -> T:
        return self.ask(f"reading the offsets of group {group!r}", "DESCRIBE on the group and its topics", call)

    def positions_partition(self, group: str) -> TopicPartition:
        """Returns the partition that keeps the committed offsets of a group."""

        def ask(client: Any) -> TopicPartition:
            (topic,) = client.describe_topics([POSITIONS_TOPIC])
            return TopicPartition(POSITIONS_TOPIC, positions_partition(group, len(topic["partitions"])))

        return self.ask(f"looking {POSITIONS_TOPIC} up", f"DESCRIBE on topic {POSITIONS_TOPIC}", ask)

    def open_transactions(self, partition: TopicPartition) -> tuple[OpenTransaction, ...]:
        """Returns the open transactions of a partition according to its leader, in order of their producer ids."""

        def ask(client: Any) -> tuple[OpenTransaction, ...]:
            found, refused = look_at(client, [partition])
            if refused:
                raise refused[partition]
            return found[partition]

        return self.ask(
            f"listing the transactions that are open on {partition}", f"READ on topic {partition.topic}", ask
        )


def _fetch_offsets(
    client: Any, group: str, partitions: Collection[TopicPartition], *, stable: bool
) -> tuple[Positions, tuple[TopicPartition, ...]]:
    """Returns the committed offsets of a group, and the partitions whose offset is pending in a transaction.

    With `stable`, the offsets lack these partitions; without it, no partition counts as pending.

    confluent-kafka 2.16 is not used: its list_consumer_group_offsets ends the process (SIGSEGV) if the coordinator
    answers with an error, which it passes to a consumer that an admin client does not have.
    """
    from kafka import errors  # noqa: PLC0415
    from kafka.protocol.consumer import OffsetFetchRequest  # noqa: PLC0415

    of_group = OffsetFetchRequest.OffsetFetchRequestGroup
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    topics = [of_group.OffsetFetchRequestTopics(name=t, partition_indexes=n) for t, n in numbers.items()]
    request = OffsetFetchRequest(
        groups=[of_group(group_id=group, topics=topics)], require_stable=stable, min_version=8, max_version=8
    )

    async def send() -> Any:
        return await client._manager.send(request, node_id=await client._find_coordinator_id(group))

    (answer,) = client._manager.run(send).groups
    found = {TopicPartition(t.name, p.partition_index): p for t in answer.topics for p in t.partitions}
    for code in (answer.error_code, *(p.error_code for p in found.values())):
        if code not in (errors.NoError.errno, errors.UnstableOffsetCommitError.errno):
            raise errors.for_code(code)(f"offsets of group {group!r}")
    unstable = errors.UnstableOffsetCommitError.errno
    return (
        {tp: p.committed_offset for tp, p in sorted(found.items()) if p.committed_offset >= 0},
        tuple(tp for tp, p in sorted(found.items()) if p.error_code == unstable),
    )


def _group_info(found: Mapping[str, Any]) -> GroupInfo:
    """Maps a group as kafka-python describes it. Raises kafka-python's error if it could not describe the group."""
    from kafka import errors  # noqa: PLC0415

    if found["error"] is not None:
        code = re.match(r"\[Error (-?\d+)\]", found["error"])
        kind = errors.for_code(int(code[1])) if code else errors.UnknownError
        if kind is not errors.GroupIdNotFoundError:
            raise kind(found["error"])
    members = (
        Member(
            instance=member["group_instance_id"] or "",
            member_id=member["member_id"],
            client_id=member["client_id"],
            host=member["client_host"].removeprefix("/"),
            partitions=_partitions(member["member_assignment"]),
        )
        for member in found["members"]
    )
    return GroupInfo(
        found["group_state"], tuple(sorted(members, key=lambda member: (member.instance, member.member_id)))
    )


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    """Returns a member's partitions; none while its group rebalances."""
    assigned = assignment["assigned_partitions"] if isinstance(assignment, Mapping) else ()
    return tuple(sorted(TopicPartition(each["topic"], number) for each in assigned for number in each["partitions"]))


def look_at(
    client: Any, partitions: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, tuple[OpenTransaction, ...]], dict[TopicPartition, Exception]]:
    """Returns the open transactions of each partition, and kafka-python's error for each that cannot be looked at."""
    leaders, refused = _leaders(client, partitions)
    before = _writers(client, leaders, refused)
    if not any(before.values()):
        return dict.fromkeys(before, ()), refused
    known = _coordinated(client, {writer.producer_id for writers in before.values() for writer in writers})
    after = _writers(client, {tp: leader for tp, leader in leaders.items() if before.get(tp)}, refused)
    return {tp: match(tp, writers, known, after.get(tp, ())) for tp, writers in before.items()}, refused


def _leaders(
    client: Any, partitions: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Exception]]:
    """Returns the leader of each partition, and the error for each partition without one."""
    from kafka import errors  # noqa: PLC0415

    described = client._manager.run(client._get_cluster_metadata, sorted({tp.topic for tp in partitions}))
    leaders: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, Exception] = {}
    reasons = {topic["name"]: topic["error_code"] for topic in described["topics"]}
    for topic in described["topics"]:
        for each in topic["partitions"]:
            leaders[TopicPartition(topic["name"], each["partition_index"])] = each["leader_id"]
    for tp in partitions:
        if leaders.get(tp, -1) < 0:
            code = (
                reasons.get(tp.topic)
                or (errors.LeaderNotAvailableError if tp in leaders else errors.UnknownTopicOrPartitionError).errno
            )
            refused[tp] = errors.for_code(code)(str(tp))
    return {tp: leaders[tp] for tp in partitions if tp not in refused}, refused


def _writers(
    client: Any, leaders: Mapping[TopicPartition, int], refused: dict[TopicPartition, Exception]
) -> dict[TopicPartition, tuple[Writer, ...]]:
    """Returns the producers with an open transaction on each partition; adds the refusals of leaders to `refused`."""
    from kafka import errors  # noqa: PLC0415
    from kafka.protocol.admin.transactions import DescribeProducersRequest  # noqa: PLC0415

    by_leader: dict[int, dict[str, list[int]]] = {}
    for tp, leader in leaders.items():
        by_leader.setdefault(leader, {}).setdefault(tp.topic, []).append(tp.partition)
    found: dict[TopicPartition, tuple[Writer, ...]] = {}
    for leader, topics in by_leader.items():
        asked = [DescribeProducersRequest.TopicRequest(name=t, partition_indexes=n) for t, n in topics.items()]
        for topic in client._manager.run(client._manager.send, DescribeProducersRequest(topics=asked), leader).topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    refused[tp] = errors.for_code(each.error_code)(str(tp))
                    continue
                found[tp] = tuple(
                    Writer(
                        p.producer_id,
                        p.producer_epoch,
                        p.coordinator_epoch,
                        p.current_txn_start_offset,
                        p.last_timestamp / 1000,
                    )
                    for p in each.active_producers
                    if p.current_txn_start_offset >= 0
                )
    return found


def _coordinated(client: Any, producer_ids: Collection[int]) -> dict[int, Coordinated]:
    """Returns the newest transaction of each producer id according to its coordinator.

    Coordinators leave out the ids on which this user lacks DESCRIBE, as if they did not know them.
    """
    found: dict[int, Coordinated] = {}
    if producer_ids:
        listed = client.list_transactions(producer_id_filters=sorted(producer_ids))
        for coordinator, each in listed.items():
            found |= {
                known.producer_id: known
                for known in describe_transactions(client, coordinator, [t.transactional_id for t in each])
            }
    return found


def describe_transactions(client: Any, coordinator: int, ids: Collection[str]) -> tuple[Coordinated, ...]:
    """Returns the newest transaction of each transactional id according to this broker, without ids unknown to it."""
    from kafka import errors  # noqa: PLC0415
    from kafka.protocol.admin.transactions import DescribeTransactionsRequest  # noqa: PLC0415

    if not ids:
        return ()
    request = DescribeTransactionsRequest(transactional_ids=sorted(ids))
    found = []
    for each in client._manager.run(client._manager.send, request, coordinator).transaction_states:
        if each.error_code == errors.TransactionalIdNotFoundError.errno:
            continue
        if each.error_code:
            raise errors.for_code(each.error_code)(f"transactional id {each.transactional_id!r}")
        started = each.transaction_start_time_ms
        found.append(
            Coordinated(
                transactional_id=each.transactional_id,
                state=each.transaction_state,
                producer_id=each.producer_id,
                epoch=each.producer_epoch,
                coordinator=coordinator,
                timeout=each.transaction_timeout_ms / 1000,
                started_at=started / 1000 if started >= 0 else None,
                partitions=frozenset(TopicPartition(t.topic, number) for t in each.topics for number in t.partitions),
            )
        )
    return tuple(found)
