"""ports/kafka/clients.py: what no broker does on request; the rest is in tests/contract/."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.delivery import Output
from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    Fatal,
    Fenced,
    InputLost,
    KStreamsError,
    NotAuthorized,
    OutcomeUnknown,
    RecordRefused,
    RecordTooLarge,
    Refused,
    Replaced,
    Retriable,
    TopicError,
)
from kstreams_py.ports.kafka import clients, silence
from kstreams_py.ports.kafka.clients import (
    ABORT_FLUSH_SECONDS,
    CHUNK_BYTES,
    CHUNK_RECORDS,
    FAILURES_KEPT,
    RETURN_SECONDS,
    Holder,
    KafkaConsumer,
    KafkaProducer,
)
from kstreams_py.ports.kafka.errors import RIGHTS
from kstreams_py.ports.kafka.silence import STILL_SECONDS
from kstreams_py.record import TopicPartition
from tests.unit.fakes import Read

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
CODES = ck.KafkaError
ELSEWHERE = ("g.0@host-7-42", "10.0.0.7")
IS_ELSEWHERE = "g.0@host-7-42 on 10.0.0.7"
SETTINGS = {"group.id": "g", "group.instance.id": "g.0", "client.id": "g.0@here-1"}


def failing(code: int, **flags: bool) -> ck.KafkaException:
    return ck.KafkaException(ck.KafkaError(code, None, **flags))


class Event(Read):
    """What a client hands out: a record, or an error in the place of one."""

    def __init__(self, topic: str, offset: int, code: int | None = None, **options: Any) -> None:
        super().__init__(topic, offset, **options)
        self._code = code

    def error(self) -> ck.KafkaError | None:
        return None if self._code is None else ck.KafkaError(self._code)


class Client:
    """A consumer's client: it keeps what is asked of it, and each `consume` does what it was given to do."""

    def __init__(self, did: list[object]) -> None:
        self.did = did
        self.answers: list[Callable[[], list[Any]]] = []
        self.member = "me"
        self.topics: dict[str, int | None] = {}
        """Codes of errors in the metadata of topics."""
        self.stored: list[Any] = []
        self.at: dict[TopicPartition, int] = {}
        """Where it reads on."""
        self.ends: dict[TopicPartition, int] | ck.KafkaException = {}

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


def metadata(topic: str, code: int | None) -> Any:
    """The cluster's metadata of one topic."""
    error = None if code is None else ck.KafkaError(code)
    return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions={})})


def place(partition: ck.TopicPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def stored(tp: TopicPartition, offset: int, code: int | None = None) -> Any:
    """A partition as the client answers it."""
    error = None if code is None else ck.KafkaError(code)
    return SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, error=error)


def replaced_by(member: object) -> str:
    return f"another worker has taken the slot of g.0 over (member {member}; {IS_ELSEWHERE}); this one ends"


class Member:
    """A KafkaConsumer that reads a and b as g.0, its clients, and who the group says holds its membership."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[object] = []
        """What it asked of its client and what it called back, in order."""
        self.held: str | Exception | None = None
        self.client = Client(self.did)
        monkeypatch.setattr(clients, "made", self._made)
        self.now = 0.0
        time = SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.now)
        monkeypatch.setattr(clients, "time", time)
        monkeypatch.setattr(silence, "time", time)
        self.consumer = KafkaConsumer(
            {"group.id": "g", "group.instance.id": "g.0", "client.id": "g.0@here-1"}, 1.0, self._holder
        )
        self.consumer.subscribe(
            ["b", "a"],
            lambda partitions: self.did.append(("assigned", partitions)),
            lambda: self.did.append("revoked"),
            lambda: self.did.append("lost"),
        )

    def _made(self, kind: object, settings: dict[str, Any], log: object) -> Client:
        self.did.append("made")
        self.on_error = settings["error_cb"]
        return self.client

    def _sleep(self, seconds: float) -> None:
        self.did.append(("sleep", seconds))

    def _holder(self, group: str, member: str) -> Holder | None:
        assert (group, member) == ("g", "g.0")
        self.did.append("asked")
        if isinstance(self.held, Exception):
            raise self.held
        return None if self.held is None else Holder(self.held, *ELSEWHERE)

    def assigned(self, *partitions: TopicPartition) -> list[Any]:
        self.client.on_assign(self.client, [stored(tp, 0) for tp in partitions])
        return []

    def revoked(self) -> list[Any]:
        self.client.on_revoke(self.client, [])
        return []

    def lost(self) -> list[Any]:
        self.client.on_lost(self.client, [])
        return []

    def fenced(self) -> list[Any]:
        """The client's log says so as it is served."""
        self.consumer._log.fenced = True
        return []

    def since(self) -> list[object]:
        """What happened since the last call."""
        seen, self.did[:] = [*self.did], []
        return seen


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    made = Member(monkeypatch)
    assert made.since() == ["made", ("subscribe", ["a", "b"])]
    return made


# The consumer: assignments and records.


@pytest.mark.parametrize("rebalance", ["revoked", "revoked and assigned again", "assigned", "lost", "none"])
def test_record_from_before_a_rebalance_is_not_handed_out(rebalance: str, member: Member) -> None:
    first, second, third = Event("a", 0), Event("a", 1), Event("a", 2)

    def rebalancing() -> list[Any]:
        if "revoked" in rebalance:
            member.revoked()
        if "assigned" in rebalance:
            member.assigned(A0)
        if rebalance == "lost":
            member.lost()
        return [second]

    member.client.answers = [lambda: [first], rebalancing, lambda: [third]]
    assert member.consumer.consume(10, 0.1) == ([first, second] if rebalance == "none" else [])
    assert [event for event in member.since() if event not in (("assign", {}), "unsubscribe")] == {
        "none": [],
        "revoked": ["revoked"],
        "assigned": [("assigned", {A0})],
        "lost": ["lost"],
        "revoked and assigned again": ["revoked", ("assigned", {A0})],
    }[rebalance]


def test_nothing_is_fetched_of_an_assignment_before_the_caller_gives_its_positions(member: Member) -> None:
    member.client.answers = [lambda: member.assigned(A0, B0)]
    assert member.consumer.consume(10, 0.1) == []
    assert member.since() == [("assign", {}), ("assigned", {A0, B0})]
    member.consumer.assign({A0: 5, B0: 7})
    assert member.since() == [("assign", {A0: 5, B0: 7})]


def test_consume_takes_a_first_record_then_what_is_there(member: Member) -> None:
    asked = []

    def consume(limit: int, timeout: float) -> list[Any]:
        asked.append((limit, timeout))
        return [Event("a", len(asked))]

    member.client.consume = consume  # type: ignore[method-assign]
    member.assigned(A0)
    for limit, timeout in ((10, 0.25), (1, 0.25), (10, 0.0)):
        member.consumer.consume(limit, timeout)
    assert asked == [(1, 0.25), (9, 0), (1, 0.25), (10, 0)]


def test_consume_returns_soon_while_the_group_deals(member: Member) -> None:
    """librdkafka serves an assignment in the middle of a consume, and goes on waiting for a record."""
    asked = []

    def consume(limit: int, timeout: float) -> list[Any]:
        asked.append((limit, timeout))
        return []

    member.client.consume = consume  # type: ignore[method-assign]
    member.consumer.consume(10, 0.25)
    member.assigned()
    member.consumer.consume(10, 0.25)
    member.revoked()
    member.consumer.consume(10, 0.25)
    member.consumer.consume(10, 0.0)
    assert asked == [(1, 0.02), (1, 0.25), (1, 0.02), (10, 0)]


def test_ends_of_partitions_are_kept_until_the_next_assign(member: Member) -> None:
    found = [Event("a", 4), Event("a", 5, CODES._PARTITION_EOF), Event("b", 9, CODES._PARTITION_EOF)]
    member.client.answers = [list, lambda: found]
    assert member.consumer.consume(10, 0.0) == []
    assert member.consumer.consume(10, 0.0) == found[:1]
    assert member.consumer.ends == {A0: 5, B0: 9}
    member.consumer.assign({A0: 0})
    assert member.consumer.ends == {}


@pytest.mark.parametrize("code", [CODES._AUTO_OFFSET_RESET, CODES.OFFSET_OUT_OF_RANGE])
def test_position_that_is_not_in_the_log_any_more_is_an_input_that_is_lost(code: int, member: Member) -> None:
    member.client.answers = [lambda: [Event("a", 5, code, partition=1)]]
    with pytest.raises(InputLost) as caught:
        member.consumer.consume(10, 0.0)
    assert str(caught.value) == (
        "a[1]: the records at the committed position were deleted before they were read "
        f"({ck.KafkaError(code).str()}): set the group's position on purpose (kafka-consumer-groups --reset-offsets)"
    )


@pytest.mark.parametrize("how", ["event", "callback"])
@pytest.mark.parametrize(
    ("code", "topic", "doing", "right"),
    [
        (
            CODES.TOPIC_AUTHORIZATION_FAILED,
            "a",
            "reading topic 'a'",
            RIGHTS[CODES.TOPIC_AUTHORIZATION_FAILED],
        ),
        (CODES.GROUP_AUTHORIZATION_FAILED, "", "joining the group 'g'", "READ and DESCRIBE on the consumer group"),
    ],
)
def test_right_that_is_missing_is_named(
    code: int, topic: str, doing: str, right: str, how: str, member: Member
) -> None:
    if how == "callback":
        member.on_error(ck.KafkaError(code))
        doing = doing if "group" in doing else "reading"
    else:
        member.client.answers = [lambda: [Event(topic, 0, code)]]
    with pytest.raises(NotAuthorized) as caught:
        member.consumer.consume(10, 0.0)
    name = ck.KafkaError(code).name()
    assert str(caught.value) == f"{doing}: the broker refuses it ({name}): grant this user {right} (kafka-acls --add)"


def test_credentials_that_the_broker_refuses_are_no_idleness(member: Member) -> None:
    member.on_error(ck.KafkaError(CODES._AUTHENTICATION, "SASL says no"))
    with pytest.raises(BrokerUnavailable, match=r"^the broker refuses the credentials: SASL says no$"):
        member.consumer.consume(10, 0.0)


@pytest.mark.parametrize("missing", [True, False])
def test_topic_that_is_not_known_ends_the_worker_only_if_the_cluster_has_none(
    missing: bool, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    member.client.topics = {"b": CODES.UNKNOWN_TOPIC_OR_PART} if missing else {}
    member.client.answers = [lambda: [Event("b", 0, CODES.UNKNOWN_TOPIC_OR_PART), Event("a", 3)]]
    if missing:
        with pytest.raises(TopicError, match=r"^topic 'b' does not exist \(any more\): run `kstreams topics create`$"):
            member.consumer.consume(10, 0.0)
    else:
        assert [m.offset() for m in member.consumer.consume(10, 0.0)] == [3]
        assert (
            "reading topic 'b': Broker: Unknown topic or partition (UNKNOWN_TOPIC_OR_PART); the client" in caplog.text
        )


def test_error_that_the_client_retries_is_raised_as_what_its_caller_must_do(member: Member) -> None:
    member.client.answers = [lambda: raising(failing(CODES._TRANSPORT))]
    with pytest.raises(Retriable, match=r"^reading: Local: Broker transport failure"):
        member.consumer.consume(10, 0.0)


def raising(error: Exception) -> list[Any]:
    raise error


def warnings(member: Member, caplog: pytest.LogCaptureFixture, seconds: float) -> list[str]:
    """What is warned of when nothing has come for so long."""
    caplog.clear()
    member.now += seconds
    member.consumer.consume(10, 0.1)
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_group_that_deals_no_partitions_is_named_now_and_then_with_what_the_client_said_last(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings(member, caplog, STILL_SECONDS - 0.1) == []
    assert warnings(member, caplog, 0.1) == ["g.0: the group 'g' has dealt it no partitions for 30 s"]
    member.client.answers = [lambda: [Event("", 0, CODES.COORDINATOR_NOT_AVAILABLE)]]
    said = "Broker: Coordinator not available (COORDINATOR_NOT_AVAILABLE)"
    assert warnings(member, caplog, STILL_SECONDS) == [
        f"g.0: the group 'g' has dealt it no partitions for 30 s: {said}"
    ]
    member.client.answers = [member.assigned]  # none, as there are more members than partitions
    member.consumer.consume(10, 0.1)
    assert warnings(member, caplog, STILL_SECONDS) == []
    member.client.answers = [member.revoked]
    member.consumer.consume(10, 0.1)
    assert warnings(member, caplog, STILL_SECONDS) == ["g.0: the group 'g' has dealt it no partitions for 30 s"]


def test_records_that_wait_and_do_not_come_are_named(member: Member, caplog: pytest.LogCaptureFixture) -> None:
    """Not those of partitions that were read out, or are paused."""
    member.client.answers = [lambda: member.assigned(A0, A1, B0)]
    member.consumer.consume(10, 0.1)
    member.consumer.assign({A0: 5, A1: 5, B0: 5})
    member.client.ends = {A0: 5, A1: 9, B0: 9}
    member.client.answers = [lambda: [Event("a", 9, CODES._PARTITION_EOF, partition=1)]]
    member.consumer.consume(10, 0.1)
    assert warnings(member, caplog, STILL_SECONDS) == [
        "g.0: nothing has been read for 30 s, though records wait: b[0] up to 9"
    ]
    member.consumer.pause([B0])
    assert warnings(member, caplog, STILL_SECONDS) == []
    member.consumer.pause([])
    member.client.at = {B0: 9}
    assert warnings(member, caplog, STILL_SECONDS) == []
    member.client.ends = failing(CODES._TIMED_OUT)
    assert warnings(member, caplog, STILL_SECONDS) == [
        "g.0: nothing has been read for 30 s, and the brokers do not say where the partitions end: Local: Timed out"
    ]


def test_nothing_is_looked_for_where_records_come(member: Member, caplog: pytest.LogCaptureFixture) -> None:
    member.client.answers = [lambda: member.assigned(A0)]
    member.consumer.consume(10, 0.1)
    member.consumer.assign({A0: 0})
    member.client.ends = {A0: 9}
    for offset in range(3):
        member.client.answers = [lambda offset=offset: [Event("a", offset)]]
        assert warnings(member, caplog, STILL_SECONDS - 0.1) == []


def test_partitions_are_paused_and_resumed_as_they_change(member: Member) -> None:
    for wanted in ({A0, B0}, {A0, B0}, {B0, A1}, set()):
        member.consumer.pause(wanted)
    assert member.since() == [
        ("pause", {A0, B0}), ("resume", set()),
        ("pause", {A1}), ("resume", {A0}),
        ("pause", set()), ("resume", {A1, B0}),
    ]  # fmt: skip
    member.consumer.pause({A0})
    member.consumer.assign({A0: 0})
    member.since()
    member.consumer.pause({A0})  # an assignment is not paused
    assert member.since() == [("pause", {A0}), ("resume", set())]


# The consumer: positions.


def test_committed_positions_are_those_there_are(member: Member) -> None:
    member.client.stored = [stored(A0, 5), stored(B0, ck.OFFSET_INVALID)]
    assert member.consumer.committed([A0, B0]) == {A0: 5}


@pytest.mark.parametrize(
    ("call", "doing"),
    [
        (lambda consumer: consumer.committed([A0]), "reading the committed position of a[0]"),
        (lambda consumer: consumer.commit({A0: 5}), "committing the position of a[0]"),
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
def test_positions_that_fail_say_what_their_caller_must_do(
    call: Callable[[KafkaConsumer], object],
    doing: str,
    code: int,
    leaf: type[Exception],
    of_partition: bool,
    member: Member,
) -> None:
    member.client.stored = [stored(B0, 5), stored(A0, 5, code)] if of_partition else [failing(code)]
    doing = doing if of_partition else {"r": "reading committed positions", "c": "committing positions"}[doing[0]]
    with pytest.raises(leaf) as caught:
        call(member.consumer)
    doing += " (group 'g')" if leaf is NotAuthorized else ""
    assert (type(caught.value), str(caught.value).partition(": ")[0]) == (leaf, doing)
    assert "lost" not in member.since()


def test_commit_waits_for_its_answer(member: Member) -> None:
    member.consumer.commit({A0: 5, B0: 7})
    assert member.since() == [("commit", {A0: 5, B0: 7}, False)]


@pytest.mark.parametrize(
    ("committed", "lost_connection", "tainted"),
    [("before", True, True), ("inside", True, True), (None, True, False), ("before", False, False)],
)
def test_commit_may_come_late_if_the_coordinator_was_lost_meanwhile(
    committed: str | None, lost_connection: bool, tainted: bool, member: Member
) -> None:
    def serving() -> list[Any]:
        if committed == "inside":
            member.consumer.commit({A0: 1})
        member.consumer._log.coordinator_lost = lost_connection
        return []

    if committed == "before":
        member.consumer.commit({A0: 1})
    member.client.answers = [serving]
    member.consumer.consume(1, 0.0)
    assert member.consumer.tainted is tainted
    member.consumer.consume(1, 0.0)
    assert member.consumer.tainted is tainted
    member.consumer.rejoin()
    assert not member.consumer.tainted


def test_commit_that_was_answered_in_an_earlier_turn_comes_no_more(member: Member) -> None:
    member.consumer.commit({A0: 1})
    member.consumer.consume(1, 0.0)
    member.client.answers = [lambda: setattr(member.consumer._log, "coordinator_lost", True) or []]
    member.consumer.consume(1, 0.0)
    assert not member.consumer.tainted


def test_commit_after_the_coordinator_was_lost_does_not_come_late_for_that(member: Member) -> None:
    member.client.answers = [lambda: setattr(member.consumer._log, "coordinator_lost", True) or []]
    member.consumer.consume(1, 0.0)
    member.consumer.commit({A0: 1})
    member.consumer.consume(1, 0.0)
    assert not member.consumer.tainted


def test_commit_in_a_callback_counts_for_the_next_turn_too(member: Member) -> None:
    member.client.answers = [lambda: member.consumer.commit({A0: 1}) or []]  # type: ignore[func-returns-value]
    member.consumer.consume(1, 0.0)
    member.client.answers = [lambda: setattr(member.consumer._log, "coordinator_lost", True) or []]
    member.consumer.consume(1, 0.0)
    assert member.consumer.tainted


# The consumer: its membership.


@pytest.mark.parametrize(
    ("held", "mine", "known", "fenced", "outcome"),
    [
        ("me", "me", True, False, True),
        ("me", "", True, False, True),  # librdkafka forgets its id once its session has timed out
        ("newer", "newer", True, False, True),  # it has joined again, and was not assigned anything since
        ("before", "newer", False, False, Replaced),
        ("other", "me", True, False, Replaced),
        ("other", "", True, False, Replaced),
        ("other", "", False, True, Replaced),
        ("other", "", False, False, False),  # it may be our own, whose join is not answered yet
        (None, "me", True, False, False),
        (None, "", False, True, False),
    ],
)
def test_membership_is_held_lost_or_nobodys(
    held: str | None, mine: str, known: bool, fenced: bool, outcome: bool | type[Exception], member: Member
) -> None:
    if known:
        member.assigned(A0)
    member.held, member.client.member = held, mine
    member.consumer._log.fenced = fenced
    member.since()
    if isinstance(outcome, bool):
        assert member.consumer.hold_seat() is outcome
    else:
        with pytest.raises(outcome) as caught:
            member.consumer.hold_seat()
        assert str(caught.value) == replaced_by(held)
    assert member.since() == ["asked"]


def test_question_who_holds_the_membership_that_has_no_answer_is_its_callers(member: Member) -> None:
    member.held = Retriable("no answer")
    with pytest.raises(Retriable, match="no answer"):
        member.consumer.hold_seat()


def test_client_whose_membership_is_lost_leaves_before_its_caller_hears_of_it(member: Member) -> None:
    """librdkafka joins again as soon as the callback returns, whoever has the membership now."""
    member.assigned(A0)
    member.since()
    member.client.answers = [member.lost]
    assert member.consumer.consume(1, 0.0) == []
    assert member.since() == ["unsubscribe", "lost"]


def losses(member: Member) -> dict[str, Callable[[], object]]:
    """The ways in which a client says that it was fenced; each is met by the next call."""
    client, fatal = member.client, ck.KafkaError(CODES._FATAL, "fenced", fatal=True)

    def consuming(answer: Callable[[], list[Any]]) -> object:
        client.answers = [answer]
        return member.consumer.consume(1, 0.0)

    def committing() -> None:
        client.stored = [failing(CODES.FENCED_INSTANCE_ID)]
        member.consumer.commit({A0: 1})

    def asking() -> None:
        client.stored = [ck.KafkaException(ck.KafkaError(CODES.UNKNOWN, "static consumer fenced by other consumer"))]
        member.consumer.committed([A0])

    return {
        "consume raises": lambda: consuming(lambda: raising(ck.KafkaException(fatal))),
        "an event": lambda: consuming(lambda: [Event("", 0, CODES.FENCED_INSTANCE_ID)]),
        "the error callback": lambda: consuming(lambda: member.on_error(fatal) or []),
        "the log": lambda: consuming(lambda: member.fenced() or raising(failing(CODES._STATE))),
        "a commit": committing,
        "a position": asking,
    }


@pytest.mark.parametrize("how", [
    "consume raises", "an event", "the error callback", "the log", "a commit", "a position",
])  # fmt: skip
def test_fencing_is_recorded_and_acted_upon_by_the_next_consume(how: str, member: Member) -> None:
    member.assigned(A0)
    member.since()
    with pytest.raises(Abortable, match="this client is no member of its group any more"):
        losses(member)[how]()
    assert [event for event in member.since() if event in ("lost", "asked", "made")] == ["lost"]
    member.held = "other"
    with pytest.raises(Replaced):
        member.consumer.consume(1, 0.0)
    assert member.since() == ["asked"]


@pytest.mark.parametrize(
    ("held", "mine", "assigned", "times", "replaced"),
    [
        ("other", "me", True, 1, True),
        ("other", "", True, 1, True),
        ("me", "", True, 1, False),  # librdkafka #3437: its session timed out, and it has forgotten its id
        (None, "", True, 1, False),
        ("newer", "newer", True, 1, False),  # it has joined again, and was not assigned anything since
        ("me", "newer", True, 1, False),  # the coordinator died before it wrote the newer id down
        ("before", "newer", False, 1, False),  # the same, where another process had the membership before
        ("other", "newer", False, 2, True),
    ],
)
def test_lost_membership_is_replacement_only_if_the_group_says_so(
    held: str | None, mine: str, assigned: bool, times: int, replaced: bool, member: Member
) -> None:
    """Otherwise it is taken with a new client, and reading goes on."""
    if assigned:
        member.assigned(A0)
    member.held, member.client.member = held, mine
    for attempt in range(1, times + 1):
        member.client.answers = [member.lost, lambda: [Event("a", 0)]]
        assert member.consumer.consume(1, 0.0) == []
        member.since()
        if replaced and attempt == times:
            with pytest.raises(Replaced) as caught:
                member.consumer.consume(1, 0.0)
            assert str(caught.value) == replaced_by(held)
            assert member.since() == ["asked"]
        else:
            assert [m.offset() for m in member.consumer.consume(1, 0.0)] == [0]
            assert member.since() == ["asked", "made", ("subscribe", ["a", "b"])]


@pytest.mark.parametrize("answer", [Retriable("busy"), BrokerUnavailable("nobody there")])
def test_group_that_does_not_say_who_holds_a_lost_membership_is_asked_again(
    answer: Exception, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    member.assigned(A0)
    member.client.answers = [member.lost]
    member.consumer.consume(1, 0.0)
    member.since()
    member.held = answer
    member.client.answers = [lambda: [Event("a", 0)]]
    for _ in range(2):
        assert member.consumer.consume(1, 0.25) == []
    assert member.since() == ["asked", ("sleep", RETURN_SECONDS)] * 2
    assert f"g.0: the membership is lost, and the group does not say who holds it: {answer}" in caplog.text
    member.held = None
    assert [m.offset() for m in member.consumer.consume(1, 0.0)] == [0]
    assert member.since() == ["asked", "made", ("subscribe", ["a", "b"])]
    assert "g.0: the membership was lost, and no other worker has taken it: joining again" in caplog.text


def test_consumer_that_never_subscribed_joins_no_group_by_a_rejoin(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[object] = []
    monkeypatch.setattr(clients, "made", lambda *_: Client(did))
    KafkaConsumer(
        {"group.id": "g", "group.instance.id": "g.0", "client.id": "g.0@here-1"}, 1.0, lambda *_: None
    ).rejoin()
    assert did == []


# The producer.


class Queue:
    """A producer's client on a clock of its own: a queue, of which each flush sends what `sends` says."""

    def __init__(self, *, room: int = 1_000_000, sends: int = 1_000_000) -> None:
        self.now = 0.0
        self.room = room
        self.sends = sends
        self.seconds: float | None = None
        """How long a flush takes; None: as long as it was given."""
        self.queue: list[Output] = []
        self.batches: list[int] = []
        """How many records each flush sent."""
        self.refuses: dict[bytes, int] = {}
        """Codes for which `produce` refuses values."""
        self.polled: list[float] = []
        self.reports: list[tuple[int, Any]] = []
        """Deliveries that have failed, to be reported by the next poll or flush."""
        self.topics: dict[str, int | None] = {}

    def monotonic(self) -> float:
        return self.now

    def __len__(self) -> int:
        return len(self.queue)

    def produce(self, *output: Any) -> None:
        if len(self.queue) >= self.room:
            raise BufferError
        if (code := self.refuses.get(output[1])) is not None:
            raise failing(code)
        self.queue.append(output)  # type: ignore[arg-type]

    def flush(self, seconds: float) -> int:
        self.now += seconds if self.seconds is None else self.seconds
        self._report()
        if sent := len(self.queue[: self.sends]):
            self.batches.append(sent)
            del self.queue[:sent]
        return len(self.queue)

    def poll(self, seconds: float) -> None:
        self.polled.append(seconds)
        self.now += seconds
        self._report()
        del self.queue[: self.sends]

    def _report(self) -> None:
        reports, self.reports = self.reports, []
        for code, m in reports:
            self.on_delivery(ck.KafkaError(code), m)

    def begin_transaction(self) -> None:
        pass

    def list_topics(self, topic: str, limit: float) -> Any:
        return metadata(topic, self.topics.get(topic))


TRANSACTIONAL = {"enable.idempotence": True, "transactional.id": "g.p.0"}
IDEMPOTENT = {"enable.idempotence": True}
PLAIN = {"enable.idempotence": False}


def producer_of(
    client: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any] = TRANSACTIONAL, limit: float = 10.0
) -> KafkaProducer:
    def made(kind: object, configuration: dict[str, Any], log: object) -> Any:
        client.on_delivery = configuration["on_delivery"]
        return client

    monkeypatch.setattr(clients, "made", made)
    monkeypatch.setattr(clients, "NEW_TOPIC_SECONDS", 0.0)  # without partitions there are no cold ones
    if isinstance(client, Queue):
        monkeypatch.setattr(clients, "time", client)
    return KafkaProducer(settings, limit)


def output(value: bytes, topic: str = "x") -> Output:
    return (topic, value, None, -1, None, None, 0, None)


def outputs(first: int, last: int) -> list[Output]:
    return [output(b"%d" % number) for number in range(first, last)]


def failed(topic: str, value: bytes, *, timestamp: int | None = 5) -> Read:
    return Read(topic, -1, value, partition=3, key=b"k", headers=[("h", b"1")], timestamp=timestamp)


@pytest.mark.parametrize("settings", [TRANSACTIONAL, IDEMPOTENT])
def test_producer_with_sequence_numbers_queues_outputs_at_once_and_takes_them_off_the_list(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(), outputs(0, 2_500)
    producer_of(client, monkeypatch, settings).write(written)
    assert (client.queue, client.batches, written) == (outputs(0, 2_500), [], [])


def test_producer_without_sequence_numbers_has_one_batch_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one could overtake the first, if the first fails and is sent again."""
    client, written = Queue(), outputs(0, 2_500)
    producer = producer_of(client, monkeypatch, PLAIN)
    producer.write(written)
    assert (client.batches, client.queue, written) == ([CHUNK_RECORDS] * 2, outputs(2_000, 2_500), [])
    producer.write([output(b"next")])
    assert (client.batches, client.queue) == ([CHUNK_RECORDS] * 2 + [500], [output(b"next")])


def test_producer_without_sequence_numbers_has_few_bytes_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [output(bytes(CHUNK_BYTES // 2 - 100))] * 3 + [output(bytes(CHUNK_BYTES))] + [output(b"")] * 2
    client = Queue()
    producer = producer_of(client, monkeypatch, PLAIN)
    producer.write(large)
    producer.flush()
    assert client.batches == [2, 1, 1, 2]


@pytest.mark.parametrize("settings", [TRANSACTIONAL, PLAIN])
def test_output_that_is_refused_at_once_is_off_the_list_and_those_behind_it_are_not(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(sends=0), outputs(0, 10)
    client.refuses = {b"4": CODES.MSG_SIZE_TOO_LARGE}
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch, settings).write(written)
    assert (caught.value.outputs, type(caught.value.mistake)) == (outputs(4, 5), RecordTooLarge)
    assert (client.queue, written) == (outputs(0, 4), outputs(5, 10))


def test_output_that_the_client_does_not_take_for_another_reason_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queue()
    client.refuses = {b"0": CODES._STATE}
    with pytest.raises(OutcomeUnknown, match=r"^writing to topic 'x': Local: Erroneous state"):
        producer_of(client, monkeypatch).write(outputs(0, 1))


def test_delivery_that_failed_before_is_why_the_client_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    client.refuses, client.reports = {b"1": CODES._STATE}, [(CODES.INVALID_RECORD, failed("x", b"0"))]
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch).write(outputs(0, 2))
    assert caught.value.outputs == []


def test_write_waits_for_room_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    client, written, queued = Queue(room=3, sends=1), outputs(0, 6), list[Output]()
    producer = producer_of(client, monkeypatch)
    produce = client.produce
    monkeypatch.setattr(client, "produce", lambda *each: produce(*each) or queued.append(each))  # type: ignore[func-returns-value,arg-type]
    producer.write(written)
    assert (queued, client.polled, written) == (outputs(0, 6), [0.02] * 3, [])


@pytest.mark.parametrize(("settings", "leaf"), [(TRANSACTIONAL, Abortable), (IDEMPOTENT, Retriable)])
def test_queue_that_stays_full_ends_the_write_and_what_is_not_queued_stays_on_the_list(
    settings: dict[str, Any], leaf: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, written = Queue(room=3, sends=0), outputs(0, 6)
    producer = producer_of(client, monkeypatch, settings)
    with pytest.raises(leaf) as caught:
        producer.write(written)
    assert (type(caught.value), str(caught.value)) == (leaf, "the producer's queue stayed full for 10 s")
    assert (client.queue, written) == (outputs(0, 3), outputs(3, 6))
    assert client.now == pytest.approx(10.0, abs=0.1)
    client.sends = 3
    producer.write(written)
    assert (client.queue, written) == (outputs(3, 6), [])


def test_write_without_sequence_numbers_waits_in_vain_and_queues_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client, written = Queue(sends=0), outputs(0, 1_500)
    producer = producer_of(client, monkeypatch, PLAIN)
    with pytest.raises(Retriable, match=r"^1000 records were not acknowledged within 10 s$"):
        producer.write(written)
    assert (client.queue, written) == (outputs(0, 1_000), outputs(1_000, 1_500))


# The producer: acknowledgements, and deliveries that failed.


def test_flush_goes_on_while_the_broker_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(sends=1)
    client.seconds = 6.0  # of a limit of ten
    producer = producer_of(client, monkeypatch, IDEMPOTENT)
    producer.write(outputs(0, 20))
    producer.flush()
    assert (client.queue, client.now) == ([], 120.0)


def test_flush_without_progress_loses_nothing_and_can_be_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(sends=0)
    producer = producer_of(client, monkeypatch, IDEMPOTENT)
    producer.write(outputs(0, 2))
    with pytest.raises(Retriable, match=r"^2 records wait for their acknowledgement, and none came within 10 s$"):
        producer.flush()
    assert (client.queue, client.now) == (outputs(0, 2), pytest.approx(10.0, abs=0.1))
    client.sends = 2
    producer.flush()
    assert client.queue == []


REFUSED_TOO_LARGE = (CODES.MSG_SIZE_TOO_LARGE, failed("x", b"large"))
REFUSED_RECORD = (CODES.INVALID_RECORD, failed("x", b"no key"))
BESIDE = (CODES._INVALID_DIFFERENT_RECORD, failed("x", b"beside"))
MISSING = (CODES.UNKNOWN_TOPIC_OR_PART, failed("gone", b"1"))
TIMED_OUT = (CODES._MSG_TIMED_OUT, failed("gone", b"2"))
FORBIDDEN = (CODES.TOPIC_AUTHORIZATION_FAILED, failed("y", b"3"))
PASSING = (CODES.NOT_ENOUGH_REPLICAS, failed("z", b"4"))
OF_CLUSTER = (CODES.CLUSTER_AUTHORIZATION_FAILED, failed("y", b"5"))

IS_FORBIDDEN = (
    "writing to topic 'y': the broker refuses it (TOPIC_AUTHORIZATION_FAILED): grant this user "
    f"{RIGHTS[CODES.TOPIC_AUTHORIZATION_FAILED]} (kafka-acls --add)"
)
IS_MISSING = "topic 'gone' does not exist: run `kstreams topics create`"
IS_REFUSED = (
    "topic 'x' refuses a record (INVALID_RECORD: Broker: Broker failed to validate record): correct what the function "
    "returns, or the topic's settings"
)
IS_PASSING = "writing to z: Broker: Not enough in-sync replicas (NOT_ENOUGH_REPLICAS)"


@pytest.mark.parametrize(
    ("reports", "exist", "leaf", "text", "given", "later"),
    [
        ([PASSING], False, Abortable, IS_PASSING, [], None),
        ([PASSING, REFUSED_RECORD, MISSING, FORBIDDEN], True, NotAuthorized, IS_FORBIDDEN, [], None),
        ([PASSING, REFUSED_RECORD, MISSING], False, TopicError, IS_MISSING, [], None),
        ([REFUSED_RECORD, TIMED_OUT], False, TopicError, IS_MISSING, [], None),
        ([PASSING, REFUSED_RECORD], False, Refused, IS_REFUSED, [b"no key"], IS_PASSING),
        ([MISSING, BESIDE, REFUSED_RECORD], True, Refused, IS_REFUSED, [b"beside", b"no key"], "writing to gone: "),
        ([MISSING], True, Abortable, "writing to gone: Broker: Unknown topic or partition", [], None),
    ],
    ids=["passing", "forbidden", "missing", "timed out", "refused", "beside", "not missing"],
)
def test_deliveries_that_failed_are_told_by_what_no_attempt_mends(
    reports: list[tuple[int, Read]],
    exist: bool,
    leaf: type[KStreamsError],
    text: str,
    given: list[bytes],
    later: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queue()
    client.reports = reports
    client.topics = {} if exist else {"gone": CODES.UNKNOWN_TOPIC_OR_PART}
    producer = producer_of(client, monkeypatch, IDEMPOTENT)
    with pytest.raises(leaf) as caught:
        producer.flush()
    assert (type(caught.value), str(caught.value)[: len(text)]) == (leaf, text)
    if isinstance(caught.value, Refused):
        assert caught.value.outputs == []  # of a producer whose caller does the work again
    if later is None:
        producer.flush()
    else:
        with pytest.raises(Abortable, match=later.partition(" (")[0]):
            producer.flush()


@pytest.mark.parametrize(
    ("reports", "mistake"),
    [
        ([REFUSED_TOO_LARGE, REFUSED_RECORD], RecordTooLarge),
        ([BESIDE], RecordRefused),
        ([BESIDE, REFUSED_TOO_LARGE], RecordTooLarge),
    ],
    ids=["first", "alone", "own"],
)
def test_refused_outputs_are_told_by_a_record_that_was_refused_itself(
    reports: list[tuple[int, Read]], mistake: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue()
    client.reports = reports
    with pytest.raises(Refused) as caught:
        producer_of(client, monkeypatch, IDEMPOTENT).flush()
    assert type(caught.value.mistake) is mistake


def test_outputs_that_were_refused_are_given_back_as_they_were_written_where_they_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report has neither the headers nor the time of its record."""
    client, producer = Queue(sends=0), None
    monkeypatch.setattr(clients, "made", lambda *_: client)
    monkeypatch.setattr(clients, "NEW_TOPIC_SECONDS", 0.0)
    monkeypatch.setattr(clients, "time", client)
    producer = KafkaProducer(IDEMPOTENT, 10.0, keeps_failed=True)
    written: list[Output] = [("x", b"%d" % i, b"k", -1, None, None, 7, [("h", b"1")]) for i in range(3)]
    producer.write(list(written))
    assert [queued[:4] + queued[6:] for queued in client.queue] == [output[:4] + output[6:] for output in written]
    for queued, code in zip(client.queue, (CODES.INVALID_RECORD, CODES._INVALID_DIFFERENT_RECORD, None), strict=True):
        report: Any = queued[4]
        report(None if code is None else ck.KafkaError(code), failed("x", b"?"))
    client.queue.clear()
    with pytest.raises(Refused) as caught:
        producer.flush()
    assert caught.value.outputs == written[:2]


@pytest.mark.parametrize(("settings", "kept"), [(TRANSACTIONAL, FAILURES_KEPT), (IDEMPOTENT, 150)])
def test_failed_deliveries_are_all_kept_but_in_a_transaction(
    settings: dict[str, Any], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue()
    client.reports = [(CODES.INVALID_RECORD, failed("x", b"%d" % number)) for number in range(150)]
    producer = producer_of(client, monkeypatch, settings)
    producer._poll(0)
    assert len(producer._failed) == kept


def test_deliveries_that_were_acknowledged_are_no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    client.on_delivery(None, failed("x", b"1"))
    producer.flush()


def test_failures_of_one_transaction_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    client.on_delivery(ck.KafkaError(CODES.INVALID_RECORD), failed("x", b"1"))
    producer.begin_transaction()
    producer.flush()


def test_client_that_has_failed_for_good_says_so_whatever_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = failing(CODES._FATAL, fatal=True)
    broken = SimpleNamespace(poll=lambda _: raising(error), flush=lambda _: raising(error), __len__=lambda: 1)
    producer = producer_of(broken, monkeypatch)
    with pytest.raises(Fatal, match=r"^serving the producer: "):
        producer._poll(0)
    with pytest.raises(Fatal, match=r"^sending what is queued: "):
        producer.flush()
    with pytest.raises(Fatal, match=r"^sending what is queued: "):
        producer._drain(0.0)
    assert producer.tainted


def test_producer_is_tainted_by_what_its_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue()
    producer = producer_of(client, monkeypatch)
    assert (producer.tainted, client.polled) == (False, [0])
    producer._log.tainted = True
    assert producer.tainted


# The producer: transactional calls.


class Transactions(Queue):
    """A producer's client whose transactional calls wait until all records are sent, and raise what they were given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = 0.0
        self.did: list[str] = []
        self.raises: ck.KafkaException | None = None
        self._sent = threading.Event()

    def flush(self, seconds: float) -> int:
        left = super().flush(seconds)
        if not left:
            self._sent.set()
        return left

    def _call(self, name: str) -> None:
        assert self._sent.wait(10)
        self.did.append(name)
        if self.raises is not None:
            raise self.raises

    def send_offsets_to_transaction(self, *_: object) -> None:
        self._call("positions")

    def commit_transaction(self, _: float) -> None:
        self._call("commit")

    def abort_transaction(self, _: float) -> None:
        self._call("abort")


class Starting(Queue):
    """Producers' clients, one after the other; the first attempts to start one raise what they were given."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes = list(codes)
        self.did: list[str] = []

    def made(self, *_: object) -> Starting:
        self.did.append("made")
        return self

    def init_transactions(self, seconds: float) -> None:
        self.did.append(f"started, within {seconds:g} s")
        if self.codes:
            raise failing(self.codes.pop(0))


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], ["made", "started, within 0.05 s"]),
        (
            [ck.KafkaError.CONCURRENT_TRANSACTIONS],
            ["made", "started, within 0.05 s", "made", "started, within 0.1 s"],
        ),
        ([ck.KafkaError._TIMED_OUT], ["made", "started, within 0.05 s", "started, within 0.1 s"]),
        (
            [ck.KafkaError._TIMED_OUT, ck.KafkaError.CONCURRENT_TRANSACTIONS, ck.KafkaError.CONCURRENT_TRANSACTIONS],
            [
                "made",
                "started, within 0.05 s",
                "started, within 0.1 s",
                "made",
                "started, within 0.2 s",
                "made",
                "started, within 10 s",
            ],
        ),
    ],
)
def test_producer_that_is_started_while_its_old_transaction_is_settled_asks_with_a_new_client(
    codes: list[int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka itself asks again after 500 ms."""
    client = Starting(*codes)
    monkeypatch.setattr(clients, "made", client.made)
    KafkaProducer(TRANSACTIONAL, 10.0).init_transactions()
    assert client.did == expected


def add_positions(producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaConsumer, "__init__", lambda self: None)
    monkeypatch.setattr(KafkaConsumer, "group", "g", raising=False)
    monkeypatch.setattr(KafkaConsumer, "group_metadata", lambda self: None)
    producer.send_offsets({A0: 1}, KafkaConsumer())  # type: ignore[call-arg]


def test_call_that_outlasts_its_own_limit_is_given_up_with_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's send_offsets_to_transaction may wait for a coordinator without end."""
    released = threading.Event()
    stuck = SimpleNamespace(
        send_offsets_to_transaction=lambda *_: released.wait(),
        flush=lambda _: 1,
        purge=lambda **_: None,
    )
    monkeypatch.setattr(clients, "CALL_GRACE_SECONDS", 0.05)
    producer = producer_of(stuck, monkeypatch, limit=0.05)
    with pytest.raises(OutcomeUnknown, match=r"adding positions .*: the client did not return within its own limit of"):
        add_positions(producer, monkeypatch)
    producer.drop()
    released.set()


def test_records_are_sent_while_positions_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    add_positions(producer, monkeypatch)
    assert (client.batches, client.did) == ([1, 1, 1], ["positions"])


def test_commit_waits_until_every_record_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    producer.commit_transaction()
    assert (client.batches, client.did) == ([1, 1, 1], ["commit"])


@pytest.mark.parametrize("reports", [[], [REFUSED_RECORD]], ids=["none failed", "one failed"])
def test_records_that_are_not_acknowledged_in_time_are_an_abort(
    reports: list[tuple[int, Read]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Queue(sends=0)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 2))
    client.reports = reports
    leaf, text = (Refused, IS_REFUSED) if reports else (Abortable, "2 records were not acknowledged within 10 s")
    with pytest.raises(leaf) as caught:
        producer.commit_transaction()
    assert str(caught.value) == text


CALLS: Sequence[Any] = [
    pytest.param(add_positions, id="positions"),
    pytest.param(lambda producer, patch: producer.commit_transaction(), id="commit"),
    pytest.param(lambda producer, patch: producer.abort_transaction(), id="abort"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("code", "flags", "leaf"),
    [
        (CODES._TIMED_OUT, {"retriable": True}, Retriable),
        (CODES.CONCURRENT_TRANSACTIONS, {"txn_requires_abort": True}, Abortable),
        (CODES.PRODUCER_FENCED, {"fatal": True}, Fenced),
        (CODES._STATE, {}, OutcomeUnknown),
    ],
)
def test_call_without_an_answer_ends_in_an_unknown_outcome_where_it_ends_the_transaction(
    call: Callable[[KafkaProducer, pytest.MonkeyPatch], None],
    code: int,
    flags: dict[str, bool],
    leaf: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    client = Transactions()
    client.raises = failing(code, **flags)
    ending = {"commit": (Retriable,), "abort": (Retriable, Abortable)}
    expected = OutcomeUnknown if leaf in ending.get(request.node.callspec.id.split("-")[-1], ()) else leaf
    with pytest.raises(expected) as caught:
        call(producer_of(client, monkeypatch), monkeypatch)
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("code", "reports", "leaf"),
    [
        (CODES._STATE, [REFUSED_RECORD], Refused),
        (CODES._STATE, [FORBIDDEN], NotAuthorized),
        (CODES._STATE, [PASSING], OutcomeUnknown),
        (CODES._STATE, [], OutcomeUnknown),
        (CODES.PRODUCER_FENCED, [REFUSED_RECORD], Fenced),
    ],
    ids=["refused", "forbidden", "passing", "none", "fenced"],
)
def test_call_that_fails_for_a_delivery_that_failed_says_which(
    code: int, reports: list[tuple[int, Read]], leaf: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Transactions()
    client.raises, client.reports = failing(code), reports
    with pytest.raises(leaf) as caught:
        producer_of(client, monkeypatch).commit_transaction()
    assert type(caught.value) is leaf


def test_abort_waits_for_what_is_on_its_way_and_forgets_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Transactions(sends=1)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 3))
    client.reports = [REFUSED_RECORD]
    producer.abort_transaction()
    assert (client.batches, client.did, producer._failed) == ([1, 1, 1], ["abort"], [])


def test_abort_that_cannot_send_what_is_queued_needs_another_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(sends=0)
    producer = producer_of(client, monkeypatch)
    producer.write(outputs(0, 2))
    with pytest.raises(OutcomeUnknown, match=r"^2 records were neither sent nor refused before the abort$"):
        producer.abort_transaction()
    assert client.now == pytest.approx(ABORT_FLUSH_SECONDS, abs=0.1)
