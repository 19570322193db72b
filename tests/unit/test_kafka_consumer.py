"""ports/kafka/consumer.py: what no broker does on request; the rest is in tests/contract/."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    InputLost,
    NotAuthorized,
    Replaced,
    Retriable,
    TopicError,
)
from kstreams_py.ports.kafka import consumer, silence
from kstreams_py.ports.kafka.consumer import RETURN_SECONDS, Holder, KafkaConsumer
from kstreams_py.ports.kafka.errors import RIGHTS
from kstreams_py.ports.kafka.silence import STILL_SECONDS
from kstreams_py.record import TopicPartition
from tests.unit.fakes import Read, failing, metadata, raising

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
CODES = ck.KafkaError
ELSEWHERE = ("g.0@host-7-42", "10.0.0.7")
IS_ELSEWHERE = "g.0@host-7-42 on 10.0.0.7"
SETTINGS = {"group.id": "g", "group.instance.id": "g.0", "client.id": "g.0@here-1"}


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
        monkeypatch.setattr(consumer, "made", self._made)
        self.now = 0.0
        time = SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.now)
        monkeypatch.setattr(consumer, "time", time)
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
        with pytest.raises(TopicError, match=r"^topic 'b' does not exist: run `kstreams topics create`$"):
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
    monkeypatch.setattr(consumer, "made", lambda *_: Client(did))
    KafkaConsumer(
        {"group.id": "g", "group.instance.id": "g.0", "client.id": "g.0@here-1"}, 1.0, lambda *_: None
    ).rejoin()
    assert did == []
