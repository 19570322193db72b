"""kafka/consumer.py: events that no broker causes on request; the rest is in tests/contract/."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest

from kstreams_py.errors import Abortable, BrokerUnavailable, InputLost, NotAuthorized, Replaced, Retriable, TopicError
from kstreams_py.kafka import consumer, silence
from kstreams_py.kafka.consumer import HIGHS_SECONDS, JOIN_AGAIN_SECONDS, KafkaConsumer
from kstreams_py.kafka.errors import RIGHTS
from kstreams_py.kafka.membership import Holder, Membership, Owner
from kstreams_py.kafka.silence import STILL_SECONDS
from kstreams_py.log_fields import FOLD
from kstreams_py.records import TopicPartition
from kstreams_py.running.terminal.logs import Repeats
from tests.unit.fakes import client_error, metadata, raise_error

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
CODES = ck.KafkaError
ELSEWHERE = ("g.0@host-7-42", "10.0.0.7")
IS_ELSEWHERE = "g.0@host-7-42 on 10.0.0.7"
SETTINGS = {"group.id": "g", "group.instance.id": "g.0", "client.id": "g.0@here-1", "session.timeout.ms": 9_000}
PATIENCE = 27.0
"""Three sessions."""


def event(topic: str, offset: int, code: int | None = None, *, partition: int = 0) -> Any:
    """What a client returns: a record, or an error in its place."""
    error = None if code is None else ck.KafkaError(code)
    return ck.Message(topic, partition, offset, value=b"v", error=error)


class Client:
    """A consumer's client: it records its calls, and each `consume` runs the next of `answers`."""

    def __init__(self, did: list[object]) -> None:
        self.did = did
        self.answers: list[Callable[[], list[Any]]] = []
        self.member = "me"
        self.topics: dict[str, int | None] = {}
        """Error codes in the metadata of topics."""
        self.stored: list[Any] = []
        self.at: dict[TopicPartition, int] = {}
        """Its positions."""
        self.ends: dict[TopicPartition, int] | ck.KafkaException = {}
        self.highs: dict[TopicPartition, int] = {}
        """The high watermarks that the answers to its fetches had."""

    def get_watermark_offsets(self, partition: ck.TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached, "no broker is asked"
        if (tp := place(partition)) not in self.highs:
            raise client_error(CODES._UNKNOWN_PARTITION)
        return 0, self.highs[tp]

    def position(self, partitions: list[ck.TopicPartition]) -> list[Any]:
        return [stored(tp, self.at.get(tp, -1001)) for tp in map(place, partitions)]

    def offsets_for_times(self, partitions: list[ck.TopicPartition], limit: float) -> list[Any]:
        if isinstance(self.ends, Exception):
            raise self.ends
        return [stored(tp, self.ends[tp]) for tp in map(place, partitions)]

    def subscribe(self, topics: list[str], **callbacks: Callable[[Any, list[Any]], None]) -> None:
        self.on_assign, self.on_revoke, self.on_lost = (
            callbacks[f"on_{what}"] for what in ("assign", "revoke", "lost")
        )
        self.did.append(("subscribe", topics))

    def unsubscribe(self) -> None:
        self.did.append("unsubscribe")

    def assign(self, partitions: list[ck.TopicPartition]) -> None:
        self.did.append(("assign", {TopicPartition(p.topic, p.partition): p.offset for p in partitions}))

    def pause(self, partitions: list[ck.TopicPartition]) -> None:
        self.did.append(("pause", {TopicPartition(p.topic, p.partition) for p in partitions}))

    def resume(self, partitions: list[ck.TopicPartition]) -> None:
        self.did.append(("resume", {TopicPartition(p.topic, p.partition) for p in partitions}))

    def consume(self, limit: int, timeout: float) -> list[Any]:
        return self.answers.pop(0)() if self.answers else []

    def memberid(self) -> str:
        return self.member

    def list_topics(self, topic: str, limit: float) -> Any:
        return metadata(topic, self.topics.get(topic))

    def committed(self, partitions: list[Any], limit: float) -> list[Any]:
        return self._answer()

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> list[Any]:
        self.did.append(("commit", {TopicPartition(p.topic, p.partition): p.offset for p in offsets}, asynchronous))
        return self._answer()

    def _answer(self) -> list[Any]:
        if self.stored and isinstance(self.stored[0], Exception):
            raise self.stored[0]
        return self.stored


def place(partition: ck.TopicPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def stored(tp: TopicPartition, offset: int, code: int | None = None, metadata: str | None = None) -> Any:
    """A partition as the client returns it."""
    error = None if code is None else ck.KafkaError(code)
    return SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, error=error, metadata=metadata)


def replaced_by(member: object) -> str:
    return f"another worker has taken the slot of g.0 over (member {member}; {IS_ELSEWHERE}); this one ends"


class Member:
    """A KafkaConsumer that reads a and b as g.0, its client, and the holder of the membership as the group names it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[object] = []
        """Calls of its client and callbacks of its caller, in order."""
        self.held: str | Exception | None = None
        self.is_stable = True
        """Whether the group is in no rebalance."""
        self.coordinator = 1
        self.client = Client(self.did)
        monkeypatch.setattr(consumer, "new_client", self._new_client)
        self.now = 0.0
        time = SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.now)
        monkeypatch.setattr(consumer, "time", time)
        monkeypatch.setattr(silence, "time", time)
        self.consumer = KafkaConsumer(SETTINGS, 1.0, self._holder)
        self.consumer.subscribe(
            ["b", "a"],
            lambda partitions: self.did.append(("assigned", partitions)),
            lambda: self.did.append("revoked"),
            lambda: self.did.append("lost"),
        )

    def _new_client(self, kind: object, settings: dict[str, Any], log: object) -> Client:
        self.did.append("new client")
        self.on_error = settings["error_cb"]
        return self.client

    def _sleep(self, seconds: float) -> None:
        self.did.append(("sleep", seconds))

    def _holder(self, group: str, member: str) -> Holder | None:
        assert (group, member) == ("g", "g.0")
        self.did.append("ask the group")
        if isinstance(self.held, Exception):
            raise self.held
        return None if self.held is None else Holder(self.held, *ELSEWHERE, self.is_stable, self.coordinator)

    def assign(self, *partitions: TopicPartition) -> list[Any]:
        self.client.on_assign(self.client, [stored(tp, 0) for tp in partitions])
        return []

    def revoke(self) -> list[Any]:
        self.client.on_revoke(self.client, [])
        return []

    def lose(self) -> list[Any]:
        self.client.on_lost(self.client, [])
        return []

    def fence(self) -> list[Any]:
        """The client's log reports the fencing."""
        self.consumer._log.fenced = True
        return []

    def take_calls(self) -> list[object]:
        """Returns the calls since the last time, and forgets them."""
        calls, self.did[:] = [*self.did], []
        return calls


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    member = Member(monkeypatch)
    assert member.take_calls() == ["new client", ("subscribe", ["a", "b"])]
    return member


# Assignments and records.


@pytest.mark.parametrize("rebalance", ["revoked", "revoked and assigned again", "assigned", "lost", "none"])
def test_record_from_before_a_rebalance_is_not_handed_out(rebalance: str, member: Member) -> None:
    first, second, third = event("a", 0), event("a", 1), event("a", 2)

    def rebalance_now() -> list[Any]:
        if "revoked" in rebalance:
            member.revoke()
        if "assigned" in rebalance:
            member.assign(A0)
        if rebalance == "lost":
            member.lose()
        return [second]

    member.client.answers = [lambda: [first], rebalance_now, lambda: [third]]
    assert member.consumer.consume(10, 0.1) == ([first, second] if rebalance == "none" else [])
    assert [event for event in member.take_calls() if event not in (("assign", {}), "unsubscribe")] == {
        "none": [],
        "revoked": ["revoked"],
        "assigned": [("assigned", {A0})],
        "lost": ["lost"],
        "revoked and assigned again": ["revoked", ("assigned", {A0})],
    }[rebalance]


def test_assignment_fetches_nothing_before_the_caller_gives_its_offsets(member: Member) -> None:
    member.client.answers = [lambda: member.assign(A0, B0)]
    assert member.consumer.consume(10, 0.1) == []
    assert member.take_calls() == [("assign", {}), ("assigned", {A0, B0})]
    member.consumer.assign({A0: 5, B0: 7})
    assert member.take_calls() == [("assign", {A0: 5, B0: 7})]


def test_consume_waits_for_a_first_record_then_takes_those_available(member: Member) -> None:
    asked = []

    def consume(limit: int, timeout: float) -> list[Any]:
        asked.append((limit, timeout))
        return [event("a", len(asked))]

    member.client.consume = consume  # type: ignore[method-assign]
    member.assign(A0)
    for limit, timeout in ((10, 0.25), (1, 0.25), (10, 0.0)):
        member.consumer.consume(limit, timeout)
    assert asked == [(1, 0.25), (9, 0), (1, 0.25), (10, 0)]


def test_consume_waits_briefly_while_the_group_rebalances(member: Member) -> None:
    """librdkafka serves an assignment within a consume, and continues to wait for a record."""
    asked = []

    def consume(limit: int, timeout: float) -> list[Any]:
        asked.append((limit, timeout))
        return []

    member.client.consume = consume  # type: ignore[method-assign]
    member.consumer.consume(10, 0.25)
    member.assign()
    member.consumer.consume(10, 0.25)
    member.revoke()
    member.consumer.consume(10, 0.25)
    member.consumer.consume(10, 0.0)
    assert asked == [(1, 0.02), (1, 0.25), (1, 0.02), (10, 0)]


def test_ends_of_partitions_are_kept_until_the_next_assign(member: Member) -> None:
    found = [event("a", 4), event("a", 5, CODES._PARTITION_EOF), event("b", 9, CODES._PARTITION_EOF)]
    member.client.answers = [list, lambda: found]
    assert member.consumer.consume(10, 0.0) == []
    assert member.consumer.consume(10, 0.0) == found[:1]
    assert member.consumer.ends == {A0: 5, B0: 9}
    member.consumer.assign({A0: 0})
    assert member.consumer.ends == {}


@pytest.mark.parametrize("code", [CODES._AUTO_OFFSET_RESET, CODES.OFFSET_OUT_OF_RANGE])
def test_consume_at_deleted_records_raises_input_lost(code: int, member: Member) -> None:
    member.client.answers = [lambda: [event("a", 5, code, partition=1)]]
    with pytest.raises(InputLost) as caught:
        member.consumer.consume(10, 0.0)
    assert str(caught.value) == (
        "a[1]: the records at the committed offset were deleted before they were read "
        f"({ck.KafkaError(code).str()}): once the group has no members, set its offset on purpose "
        "(`kstreams recover reset`; of a topic that tasks read, `kafka-consumer-groups.sh --reset-offsets`)"
    )


@pytest.mark.parametrize("how", ["event", "callback"])
@pytest.mark.parametrize(
    ("code", "topic", "doing", "right"),
    [
        (CODES.TOPIC_AUTHORIZATION_FAILED, "a", "reading topic 'a'", RIGHTS[CODES.TOPIC_AUTHORIZATION_FAILED]),
        (CODES.GROUP_AUTHORIZATION_FAILED, "", "joining the group 'g'", "READ and DESCRIBE on the consumer group"),
    ],
)
def test_missing_right_is_named(code: int, topic: str, doing: str, right: str, how: str, member: Member) -> None:
    if how == "callback":
        member.on_error(ck.KafkaError(code))
        doing = doing if "group" in doing else "reading"
    else:
        member.client.answers = [lambda: [event(topic, 0, code)]]
    with pytest.raises(NotAuthorized) as caught:
        member.consumer.consume(10, 0.0)
    name = ck.KafkaError(code).name()
    assert str(caught.value) == (
        f"{doing}: the broker refuses it ({name}): grant this user {right} "
        "(kafka-acls --add; `kstreams acls` prints all of a graph)"
    )


def test_refused_credentials_raise_broker_unavailable(member: Member) -> None:
    member.on_error(ck.KafkaError(CODES._AUTHENTICATION, "SASL failed"))
    with pytest.raises(BrokerUnavailable, match=r"^the broker refuses the credentials: SASL failed$"):
        member.consumer.consume(10, 0.0)


@pytest.mark.parametrize("missing", [True, False])
def test_unknown_topic_raises_topic_error_only_if_the_cluster_does_not_have_it(
    missing: bool, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    member.client.topics = {"b": CODES.UNKNOWN_TOPIC_OR_PART} if missing else {}
    member.client.answers = [lambda: [event("b", 0, CODES.UNKNOWN_TOPIC_OR_PART), event("a", 3)]]
    if missing:
        with pytest.raises(TopicError, match=r"^topic 'b' does not exist: run `kstreams topics create`$"):
            member.consumer.consume(10, 0.0)
    else:
        assert [m.offset() for m in member.consumer.consume(10, 0.0)] == [3]
        assert (
            "reading topic 'b': Broker: Unknown topic or partition (UNKNOWN_TOPIC_OR_PART); the client" in caplog.text
        )


def test_consume_with_a_transport_failure_raises_retriable(member: Member) -> None:
    member.client.answers = [lambda: raise_error(client_error(CODES._TRANSPORT))]
    with pytest.raises(Retriable, match=r"^reading: Local: Broker transport failure"):
        member.consumer.consume(10, 0.0)


def warnings_after(seconds: float, member: Member, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Consumes `seconds` later, and returns the warnings that this logs."""
    caplog.clear()
    member.now += seconds
    member.consumer.consume(10, 0.1)
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_missing_assignment_is_logged_every_30_seconds_with_the_last_client_error(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_after(STILL_SECONDS - 0.1, member, caplog) == []
    assert warnings_after(0.1, member, caplog) == ["g.0: the group 'g' has made it no assignment for 30 s"]
    member.client.answers = [lambda: [event("", 0, CODES.COORDINATOR_NOT_AVAILABLE)]]
    error = "Broker: Coordinator not available (COORDINATOR_NOT_AVAILABLE)"
    assert warnings_after(STILL_SECONDS, member, caplog) == [
        f"g.0: the group 'g' has made it no assignment for 30 s: {error}"
    ]
    member.client.answers = [member.assign]  # no partition, as there are more members than partitions
    member.consumer.consume(10, 0.1)
    assert warnings_after(STILL_SECONDS, member, caplog) == []
    member.client.answers = [member.revoke]
    member.consumer.consume(10, 0.1)
    assert warnings_after(STILL_SECONDS, member, caplog) == ["g.0: the group 'g' has made it no assignment for 30 s"]


def test_partitions_with_unread_records_are_logged_every_30_seconds(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """Except partitions that are read to their ends, or are paused."""
    member.client.answers = [lambda: member.assign(A0, A1, B0)]
    member.consumer.consume(10, 0.1)
    member.consumer.assign({A0: 5, A1: 5, B0: 5})
    member.client.ends = {A0: 5, A1: 9, B0: 9}
    member.client.answers = [lambda: [event("a", 9, CODES._PARTITION_EOF, partition=1)]]
    member.consumer.consume(10, 0.1)
    assert warnings_after(STILL_SECONDS, member, caplog) == [
        "g.0: nothing has been read for 30 s, though records wait: b[0] up to 9"
    ]
    member.consumer.pause([B0])
    assert warnings_after(STILL_SECONDS, member, caplog) == []
    member.consumer.pause([])
    member.client.at = {B0: 9}
    assert warnings_after(STILL_SECONDS, member, caplog) == []
    member.client.ends = client_error(CODES.TOPIC_AUTHORIZATION_FAILED)
    why = "the ends of the partitions are unknown: Broker: Topic authorization failed"
    assert warnings_after(STILL_SECONDS, member, caplog) == [f"g.0: nothing has been read for 30 s, and {why}"]


@pytest.fixture
def reader(member: Member) -> Member:
    """A consumer whose partitions are assigned by hand."""
    member.consumer = KafkaConsumer(SETTINGS, 1.0, member._holder)
    member.consumer.assign({A0: 5})
    return member


def test_reader_without_a_group_is_not_said_to_wait_for_an_assignment(
    reader: Member, caplog: pytest.LogCaptureFixture
) -> None:
    reader.client.ends = {A0: 9}
    still = "g.0: nothing has been read for 30 s"
    assert warnings_after(STILL_SECONDS, reader, caplog) == [f"{still}, though records wait: a[0] up to 9"]
    reader.client.ends = client_error(CODES._TRANSPORT)
    assert warnings_after(STILL_SECONDS, reader, caplog) == [f"{still}: the brokers of its partitions do not answer"]


def test_reader_without_a_group_learns_that_its_topic_was_deleted(reader: Member) -> None:
    reader.client.topics = {"a": CODES.UNKNOWN_TOPIC_OR_PART}
    reader.client.answers = [lambda: [event("a", 5, CODES.UNKNOWN_TOPIC_OR_PART)]]
    with pytest.raises(TopicError, match=r"^topic 'a' does not exist: "):
        reader.consumer.consume(10, 0.0)


def folds(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """How the lines of kafka/silence.py are folded."""
    return [getattr(r, FOLD) for r in caplog.records if r.name.endswith("silence")]


@pytest.mark.parametrize("code", [CODES._TIMED_OUT, CODES._UNKNOWN_PARTITION, CODES._TRANSPORT])
def test_member_that_no_broker_answers_is_a_part_of_the_outage_until_it_reads_again(
    member: Member, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """While no broker answers, a client calls each partition unknown, in each member."""
    caplog.set_level("INFO")
    member.client.answers = [lambda: member.assign(A0)]
    member.consumer.consume(10, 0.1)
    member.consumer.assign({A0: 5})
    member.client.answers = [lambda: [event("", 0, CODES._TRANSPORT)]]
    member.consumer.consume(10, 0.1)
    ends, member.client.ends = {A0: 5}, client_error(code)
    failure = "Local: Broker transport failure (_TRANSPORT)"
    assert warnings_after(STILL_SECONDS, member, caplog) == [
        f"g.0: nothing has been read for 30 s: the brokers of its partitions do not answer: {failure}"
    ]
    assert folds(caplog) == [("away", "reading of g.0")]
    member.client.ends = ends
    assert warnings_after(STILL_SECONDS, member, caplog) == []
    assert folds(caplog) == [("answers", "reading of g.0")]
    assert (warnings_after(STILL_SECONDS, member, caplog), folds(caplog)) == ([], [])


def read_a_record(member: Member) -> None:
    member.client.answers = [answer_with(event("a", 5))]
    member.consumer.consume(10, 0.1)


def get_an_assignment(member: Member) -> None:
    member.consumer.rejoin()
    member.client.answers = [lambda: member.assign(A0)]
    member.consumer.consume(10, 0.1)


@pytest.mark.parametrize("recover", [read_a_record, get_an_assignment])
def test_outage_of_a_member_ends_with_a_record_or_an_assignment(
    member: Member, caplog: pytest.LogCaptureFixture, recover: Callable[[Member], None]
) -> None:
    caplog.set_level("INFO")
    member.client.answers = [lambda: member.assign(A0)]
    member.consumer.consume(10, 0.1)
    member.consumer.assign({A0: 5})
    member.client.ends = client_error(CODES._UNKNOWN_PARTITION)
    assert len(warnings_after(STILL_SECONDS, member, caplog)) == 1
    recover(member)
    assert folds(caplog) == [("away", "reading of g.0"), ("answers", "reading of g.0")]


def test_missing_assignment_is_a_part_of_the_outage_if_no_broker_answers(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    for code, fold in ((CODES._ALL_BROKERS_DOWN, "away"), (CODES.COORDINATOR_NOT_AVAILABLE, "repeated")):
        member.client.answers = [answer_with(event("", 0, code))]
        assert len(warnings_after(STILL_SECONDS, member, caplog)) == 1
        assert [kind for kind, *_ in folds(caplog)] == [fold]


def test_broker_that_cannot_be_reached_is_one_line_of_all_clients(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for code in (CODES._TRANSPORT, CODES._ALL_BROKERS_DOWN) * 5:
        member.client.answers = [answer_with(event("", 0, code))]
        member.consumer.consume(10, 0.1)
    lines, repeats = [each for each in caplog.records if each.name.endswith("consumer")], Repeats()
    folded = [getattr(each, FOLD)[1:] for each in lines]
    written = [repeats.take(what, newest, 20, 0.0, first) for what, newest, first in folded]
    assert (written, lines[0].getMessage().partition(": ")[0]) == (
        [True, *[False] * 9],
        "a broker cannot be reached; the client tries again",
    )
    assert [each.text for each in repeats.finish(10.0)] == ["9 more failed connections to brokers in 10 s"]


def test_high_watermarks_of_partitions_read_to_their_ends_are_asked_for_each_second(member: Member) -> None:
    member.client.answers = [lambda: member.assign(A0, A1, B0)]
    member.consumer.consume(10, 0.1)
    member.consumer.assign({A0: 5, A1: 5, B0: 5})
    member.client.highs = {A0: 7, A1: 9}
    events = [event(topic, 5, CODES._PARTITION_EOF, partition=partition) for topic, partition in (A1, B0)]
    member.client.answers = [lambda: events]
    member.consumer.consume(10, 0.1)
    seen = []
    for high, seconds in ((9, 0.0), (10, HIGHS_SECONDS), (11, HIGHS_SECONDS / 2)):
        member.now += seconds
        member.client.highs[A1] = high
        member.consumer.consume(10, 0.1)
        seen.append(member.consumer.highs)
    assert seen == [{}, {A1: 10}, {A1: 10}], "that of a[0] is of no use: it was not read to its end"


def answer_with(*events: Any) -> Callable[[], list[Any]]:
    return lambda: [*events]


def test_partitions_that_are_read_log_no_warning(member: Member, caplog: pytest.LogCaptureFixture) -> None:
    member.client.answers = [lambda: member.assign(A0)]
    member.consumer.consume(10, 0.1)
    member.consumer.assign({A0: 0})
    member.client.ends = {A0: 9}
    for offset in range(3):
        member.client.answers = [answer_with(event("a", offset))]
        assert warnings_after(STILL_SECONDS - 0.1, member, caplog) == []


def test_partitions_are_paused_and_resumed_as_they_change(member: Member) -> None:
    for wanted in ({A0, B0}, {A0, B0}, {B0, A1}, set()):
        member.consumer.pause(wanted)
    assert member.take_calls() == [
        ("pause", {A0, B0}), ("resume", set()),
        ("pause", {A1}), ("resume", {A0}),
        ("pause", set()), ("resume", {A1, B0}),
    ]  # fmt: skip


def test_pause_ends_with_the_next_assignment_even_after_a_revocation(member: Member) -> None:
    """librdkafka keeps it over assignments."""
    member.consumer.pause({A0})
    member.revoke()
    member.take_calls()
    member.consumer.assign({A0: 0})
    assert member.take_calls()[-2:] == [("pause", set()), ("resume", {A0})]
    member.consumer.pause({A0})
    assert member.take_calls() == [("pause", {A0}), ("resume", set())]


# Committed offsets.


def test_committed_leaves_out_partitions_without_an_offset(member: Member) -> None:
    member.client.stored = [stored(A0, 5), stored(A1, 7, metadata="deaths 9:1"), stored(B0, ck.OFFSET_INVALID)]
    assert member.consumer.committed([A0, A1, B0]) == {A0: 5, A1: 7}
    assert member.consumer.noted([A0, A1, B0]) == {A0: (5, ""), A1: (7, "deaths 9:1")}


@pytest.mark.parametrize(
    ("call", "doing"),
    [
        (lambda consumer: consumer.committed([A0]), "reading the committed offset of a[0]"),
        (lambda consumer: consumer.commit({A0: 5}), "committing the offset of a[0]"),
    ],
    ids=["committed", "commit"],
)
@pytest.mark.parametrize(
    ("code", "leaf"),
    [
        (CODES.UNSTABLE_OFFSET_COMMIT, Retriable),
        (CODES.REQUEST_TIMED_OUT, Retriable),
        (CODES.ILLEGAL_GENERATION, Abortable),
        (CODES.GROUP_AUTHORIZATION_FAILED, NotAuthorized),
    ],
)
@pytest.mark.parametrize("of_partition", [True, False])
def test_failed_offset_request_raises_the_exception_of_its_code(
    call: Callable[[KafkaConsumer], object],
    doing: str,
    code: int,
    leaf: type[Exception],
    of_partition: bool,
    member: Member,
) -> None:
    member.client.stored = [stored(B0, 5), stored(A0, 5, code)] if of_partition else [client_error(code)]
    doing = doing if of_partition else {"r": "reading committed offsets", "c": "committing offsets"}[doing[0]]
    with pytest.raises(leaf) as caught:
        call(member.consumer)
    doing += " (group 'g')" if leaf is NotAuthorized else ""
    assert (type(caught.value), str(caught.value).partition(": ")[0]) == (leaf, doing)
    assert "lost" not in member.take_calls()


def test_commit_waits_for_its_answer(member: Member) -> None:
    member.consumer.commit({A0: 5, B0: 7})
    assert member.take_calls() == [("commit", {A0: 5, B0: 7}, False)]


@pytest.mark.parametrize(
    ("committed", "lost_connection", "tainted"),
    [("before", True, True), ("inside", True, True), (None, True, False), ("before", False, False)],
)
def test_commit_before_the_loss_of_the_coordinator_taints_the_consumer(
    committed: str | None, lost_connection: bool, tainted: bool, member: Member
) -> None:
    def serve() -> list[Any]:
        if committed == "inside":
            member.consumer.commit({A0: 1})
        member.consumer._log.coordinator_lost = lost_connection
        return []

    if committed == "before":
        member.consumer.commit({A0: 1})
    member.client.answers = [serve]
    member.consumer.consume(1, 0.0)
    assert member.consumer.tainted is tainted
    member.consumer.consume(1, 0.0)
    assert member.consumer.tainted is tainted
    member.consumer.rejoin()
    assert not member.consumer.tainted


def lose_coordinator(member: Member) -> list[Any]:
    """The client loses the connection to its coordinator, and returns no record."""
    member.consumer._log.coordinator_lost = True
    return []


def test_commit_answered_in_an_earlier_turn_does_not_taint_the_consumer(member: Member) -> None:
    member.consumer.commit({A0: 1})
    member.consumer.consume(1, 0.0)
    member.client.answers = [partial(lose_coordinator, member)]
    member.consumer.consume(1, 0.0)
    assert not member.consumer.tainted


def test_commit_after_the_loss_of_the_coordinator_does_not_taint_the_consumer(member: Member) -> None:
    member.client.answers = [partial(lose_coordinator, member)]
    member.consumer.consume(1, 0.0)
    member.consumer.commit({A0: 1})
    member.consumer.consume(1, 0.0)
    assert not member.consumer.tainted


def test_commit_in_a_callback_counts_for_the_next_turn(member: Member) -> None:
    def commit() -> list[Any]:
        member.consumer.commit({A0: 1})
        return []

    member.client.answers = [commit]
    member.consumer.consume(1, 0.0)
    member.client.answers = [partial(lose_coordinator, member)]
    member.consumer.consume(1, 0.0)
    assert member.consumer.tainted


# The membership.


def end_rebalance(member: Member) -> None:
    member.revoke()
    member.assign(A0)


JOINING: dict[str, Callable[[Member], object]] = {
    "for the first time": lambda member: None,
    "in a rebalance": Member.revoke,
    "as a new client": lambda member: member.consumer.rejoin(),
}
"""What a member joins after; all but the first had an assignment before, as "me"."""

SETTLED: dict[str, Callable[[Member], object]] = {
    "assigned": lambda member: None,
    "after a rebalance": end_rebalance,
    "lost": Member.lose,
}
"""What a member has seen since its assignment, with no join of its own under way."""


@pytest.mark.parametrize(
    ("held", "mine", "owner"),
    [
        ("me", "me", Owner.OURS),
        ("me", "", Owner.OURS),  # librdkafka forgets its id once its session has timed out
        ("other", "me", Owner.ANOTHERS),
        ("other", "", Owner.ANOTHERS),
        (None, "me", Owner.NOBODYS),
        (None, "", Owner.NOBODYS),
    ],
)
@pytest.mark.parametrize("since", SETTLED)
def test_membership_owner_follows_the_member_id_that_the_group_names(
    since: str, held: str | None, mine: str, owner: Owner, member: Member
) -> None:
    member.assign(A0)
    SETTLED[since](member)
    member.held, member.client.member = held, mine
    member.take_calls()
    assert member.consumer.membership() == Membership(
        owner, f"member {held}; {IS_ELSEWHERE}" if held == "other" else ""
    )
    assert member.take_calls() == ["ask the group"]


@pytest.mark.parametrize(
    ("held", "mine", "owner"),
    [
        ("other", "", Owner.UNSURE),  # our own, or that of a worker whose join came later
        ("other", "newer", Owner.UNSURE),  # its join was answered, and an earlier copy of it came later
        ("newer", "newer", Owner.OURS),  # it has joined again, without an assignment since
        (None, "newer", Owner.NOBODYS),
        (None, "", Owner.NOBODYS),
    ],
)
@pytest.mark.parametrize("joins", JOINING)
def test_unknown_holder_is_no_replacement_while_a_client_joins(
    joins: str, held: str | None, mine: str, owner: Owner, member: Member
) -> None:
    """The group names a static member, with its new id, before it answers the join."""
    if joins != "for the first time":
        member.assign(A0)
    JOINING[joins](member)
    member.held, member.client.member = held, mine
    assert member.consumer.membership().owner is owner
    member.client.member = "newest"
    member.assign(A0)
    assert member.consumer.membership().owner is (Owner.ANOTHERS if owner is Owner.UNSURE else owner)


def test_member_that_keeps_its_id_knows_another_holder_for_its_replacement(member: Member) -> None:
    member.assign(A0)
    member.revoke()
    member.held = "other"
    assert member.consumer.membership() == Membership(Owner.ANOTHERS, f"member other; {IS_ELSEWHERE}")
    member.held = "me"
    assert member.consumer.membership() == Membership(Owner.OURS)


def test_membership_without_an_answer_raises_retriable(member: Member) -> None:
    member.held = Retriable("no answer")
    with pytest.raises(Retriable, match="no answer"):
        member.consumer.membership()


def test_lost_membership_unsubscribes_before_the_callback_of_the_caller(member: Member) -> None:
    """librdkafka joins again as soon as the callback returns, even if another client holds the membership."""
    member.assign(A0)
    member.take_calls()
    member.client.answers = [member.lose]
    assert member.consumer.consume(1, 0.0) == []
    assert member.take_calls() == ["unsubscribe", "lost"]


def fenced_calls(member: Member) -> dict[str, Callable[[], object]]:
    """Calls that raise because the client was fenced, by the way in which the client reports it."""
    client, fatal = member.client, ck.KafkaError(CODES._FATAL, "fenced", fatal=True)

    def consume(answer: Callable[[], list[Any]]) -> object:
        client.answers = [answer]
        return member.consumer.consume(1, 0.0)

    def commit() -> None:
        client.stored = [client_error(CODES.FENCED_INSTANCE_ID)]
        member.consumer.commit({A0: 1})

    def read_committed() -> None:
        client.stored = [ck.KafkaException(ck.KafkaError(CODES.UNKNOWN, "static consumer fenced by other consumer"))]
        member.consumer.committed([A0])

    return {
        "consume raises": lambda: consume(lambda: raise_error(ck.KafkaException(fatal))),
        "an event": lambda: consume(lambda: [event("", 0, CODES.FENCED_INSTANCE_ID)]),
        "the error callback": lambda: consume(lambda: member.on_error(fatal) or []),
        "the log": lambda: consume(lambda: member.fence() or raise_error(client_error(CODES._STATE))),
        "a commit": commit,
        "a committed offset": read_committed,
    }


@pytest.mark.parametrize("how", [
    "consume raises", "an event", "the error callback", "the log", "a commit", "a committed offset",
])  # fmt: skip
def test_fencing_is_recorded_and_acted_upon_by_the_next_consume(how: str, member: Member) -> None:
    member.assign(A0)
    member.take_calls()
    with pytest.raises(Abortable, match="this client is no longer a member of its group"):
        fenced_calls(member)[how]()
    assert [event for event in member.take_calls() if event in ("lost", "ask the group", "new client")] == ["lost"]
    member.held = "other"
    with pytest.raises(Replaced):
        member.consumer.consume(1, 0.0)
    assert member.take_calls() == ["ask the group"]


JOINED_AGAIN = ["ask the group", "new client", ("subscribe", ["a", "b"])]
WAITED = ["ask the group", ("sleep", JOIN_AGAIN_SECONDS)]


def lose_membership(member: Member) -> None:
    member.client.answers = [member.lose]
    assert member.consumer.consume(1, 0.0) == []
    member.take_calls()


def join_again(member: Member) -> list[object]:
    """Calls `consume` after the loss; returns what it did. A client that joins reads a record."""
    member.client.answers = [lambda: [event("a", 0)]]
    found = member.consumer.consume(1, 0.0)
    calls = member.take_calls()
    assert [m.offset() for m in found] == ([0] if "new client" in calls else [])
    return calls


def assert_replaced(member: Member) -> None:
    with pytest.raises(Replaced) as caught:
        member.consumer.consume(1, 0.0)
    assert str(caught.value) == replaced_by(member.held)
    assert member.take_calls() == ["ask the group"]


def seconds_until_replaced(member: Member) -> float:
    """Calls `consume` each second until it raises Replaced."""
    began = member.now
    with suppress(Replaced):
        while join_again(member) == WAITED:
            member.now += 1.0
    assert member.take_calls() == ["ask the group"]
    return member.now - began


@pytest.mark.parametrize("mine", ["me", ""])
def test_another_holder_of_a_lost_membership_ends_the_worker_at_once(mine: str, member: Member) -> None:
    member.assign(A0)
    member.held, member.client.member = "other", mine
    lose_membership(member)
    assert_replaced(member)


@pytest.mark.parametrize(
    ("held", "mine"),
    [
        ("me", ""),  # librdkafka #3437: its session timed out, and it has forgotten its id
        (None, ""),
        ("newer", "newer"),  # it has joined again, without an assignment since
        ("me", "newer"),  # the coordinator died before it stored the newer id
    ],
)
def test_lost_membership_that_no_other_holds_is_taken_again(held: str | None, mine: str, member: Member) -> None:
    """A new client joins with it, and reading continues."""
    member.assign(A0)
    member.held, member.client.member = held, mine
    lose_membership(member)
    assert join_again(member) == JOINED_AGAIN


def test_join_that_another_client_repeats_is_known_by_its_member_id(member: Member) -> None:
    """A join that was answered has led to no assignment, and the coordinator still has its member."""
    member.held, member.client.member = "newer", "newer"
    lose_membership(member)
    assert join_again(member) == JOINED_AGAIN
    member.client.member = ""
    lose_membership(member)
    assert join_again(member) == JOINED_AGAIN


@pytest.mark.parametrize("mine", ["newer", ""])
@pytest.mark.parametrize("joins", JOINING)
def test_unknown_holder_that_stays_for_three_sessions_is_a_replacement(
    joins: str, mine: str, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    if joins != "for the first time":
        member.assign(A0)
    JOINING[joins](member)
    member.held, member.client.member = "other", mine
    lose_membership(member)
    assert seconds_until_replaced(member) == PATIENCE + 1
    assert_replaced(member)
    text = (
        "g.0: the membership was lost, and its holder may be this worker itself, by a join without an answer (member "
        f"other; {IS_ELSEWHERE}): joining again once that leaves; another worker would stay for longer than 3 sessions"
    )
    assert [message for message in caplog.messages if "may be" in message] == [text] * 28


def test_unknown_holder_that_leaves_was_this_worker_itself(member: Member) -> None:
    member.assign(A0)
    member.consumer.rejoin()
    member.held, member.client.member = "other", ""
    lose_membership(member)
    assert join_again(member) == WAITED
    member.now += PATIENCE
    member.held = None
    assert join_again(member) == JOINED_AGAIN


class Answer(NamedTuple):
    """An answer of the group in place of the unknown holder in a stable group."""

    held: str | Exception = "other"
    is_stable: bool = True
    coordinator: int = 1


@pytest.mark.parametrize(
    "answer",
    [Answer("third"), Answer(is_stable=False), Answer(coordinator=2), Answer(Retriable("busy"))],
    ids=["another holder", "a rebalance", "another coordinator", "no answer"],
)
def test_stay_of_an_unknown_holder_is_measured_where_all_sessions_go_on(answer: Answer, member: Member) -> None:
    """In a rebalance no member sends heartbeats; a coordinator that is back, or another one, starts sessions again."""
    member.assign(A0)
    member.consumer.rejoin()
    member.client.member = ""
    member.held = "other"
    lose_membership(member)
    for _ in range(27):
        assert join_again(member) == WAITED
        member.now += 1.0
    member.held, member.is_stable, member.coordinator = answer
    assert join_again(member) == WAITED
    member.held, member.is_stable, member.coordinator = Answer()
    assert seconds_until_replaced(member) == PATIENCE + 1
    assert_replaced(member)


@pytest.mark.parametrize("answer", [Retriable("busy"), BrokerUnavailable("no broker")])
def test_holder_of_a_lost_membership_is_asked_for_until_the_group_answers(
    answer: Exception, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    member.assign(A0)
    member.client.answers = [member.lose]
    member.consumer.consume(1, 0.0)
    member.take_calls()
    member.held = answer
    member.client.answers = [lambda: [event("a", 0)]]
    for _ in range(2):
        assert member.consumer.consume(1, 0.25) == []
    assert member.take_calls() == ["ask the group", ("sleep", JOIN_AGAIN_SECONDS)] * 2
    assert f"g.0: the membership is lost, and the group does not say who holds it: {answer}" in caplog.text
    member.held = None
    assert [m.offset() for m in member.consumer.consume(1, 0.0)] == [0]
    assert member.take_calls() == ["ask the group", "new client", ("subscribe", ["a", "b"])]
    assert "g.0: the membership was lost, and no other worker has taken it: joining again" in caplog.text


def test_each_join_makes_the_group_forget_an_assignment_without_added_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[object] = []
    monkeypatch.setattr(consumer, "new_client", lambda *_: Client(did))

    def prepare(group: str, instance_id: str, topics: Collection[str]) -> None:
        did.append(("prepare", group, instance_id, list(topics)))
        raise Retriable("the coordinator gives no answer")

    joining = KafkaConsumer(SETTINGS, 1.0, lambda *_: None, prepare)
    joining.subscribe(["b", "a"], lambda _: None, lambda: None, lambda: None)
    joining.rejoin()
    assert did == [("prepare", "g", "g.0", ["a", "b"]), ("subscribe", ["a", "b"])] * 2


def test_rejoin_without_a_subscription_makes_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[object] = []
    monkeypatch.setattr(consumer, "new_client", lambda *_: Client(did))
    KafkaConsumer(SETTINGS, 1.0, lambda *_: None).rejoin()
    assert did == []
