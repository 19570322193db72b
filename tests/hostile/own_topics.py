"""Records that other programs write to the framework's own topics: each is named, with what to do, and none is taken.

A row has what is written and why it is refused. The whole message is compared; its frame is that of the place.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, cast

import pytest

import kstreams_py as ks
from kstreams_py.errors import KStreamsError
from kstreams_py.graph.pipelines import Mode, Pipeline
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.order import find_objects
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER
from kstreams_py.processing.beginning import BegunPartition, begun_record, read_begun
from kstreams_py.processing.dead_letters.letters import Letter, LetterPlace
from kstreams_py.processing.dead_letters.marks import mark_record
from kstreams_py.processing.journal.choices_journal import ChoicesJournal
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.journal.records import (
    CHOICES_ALONE,
    NEWEST,
    Attempt,
    RecordType,
    Snapshot,
    attempt_record,
    choices_record,
    snapshot_record,
)
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.processing.topics import DELIVERED_SETTINGS, JOURNAL_SETTINGS, check_topics
from kstreams_py.records import Headers, Message, TopicPartition, Unreadable, undecompressed
from kstreams_py.spark.pipelines.kafka import KafkaTable
from kstreams_py.spark.pipelines.runs import PipelineRun, Published
from kstreams_py.state.changelog import Changelog, Position, write_positions
from kstreams_py.state.keyed import POSITIONS_KEY, RESERVED, MemoryBase, TaskStore
from kstreams_py.state.reading import read_state
from kstreams_py.state.stores import Stores
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import MemoryCluster, MemoryRegistry, TestDriver
from tests.hostile import Outcome, Place

REFUSED, PASSED_OVER = Outcome.REFUSED, Outcome.PASSED_OVER

UNREAD: Final = b"of a batch that no client can decompress"
BAD_NAME: Final = "\udcff"
UNREAD_WHY: Final = "the batch of the offsets {0} to {0} cannot be decompressed: odd codec"
UNREAD_HEADERS: Final = (
    "its headers cannot be read, because a name is not UTF-8: 'utf-8' codec can't encode character '\\udcff' in "
    "position 0: surrogates not allowed"
)
DEEP: Final = b"[" * 100_000
NOT_UTF_8: Final = "it is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
NOTHING: Final = "it is not JSON: Expecting value: line 1 column 1 (char 0)"
NOT_AVRO: Final = "not Avro in the wire format: starts with b'\\xff\\xfe', not with a zero byte and a schema id"
DEEP_WHY: Final = "it is nested too deep"


class Junk(NamedTuple):
    """A record of another program."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None


Enter = Callable[[Junk, pytest.FixtureRequest], tuple[Outcome, str, int]]
"""Enters a record; returns what becomes of it, the message, and its offset."""


class OddCluster(MemoryCluster):
    """A cluster in memory that reads UNREAD as a client does a batch that it cannot decompress."""

    def newest(self, partition: TopicPartition) -> Message | None:
        found = super().newest(partition)
        return None if found is None else _as_read(found)

    def read(self, partition: TopicPartition, *rest: Any, **options: Any) -> Sequence[Message]:
        return [*map(_as_read, super().read(partition, *rest, **options))]

    def named(self, name: str) -> MemoryCluster:
        self._make_other = cast(Any, partial(OddCluster, self.clock))
        return super().named(name)


def _as_read(m: Message) -> Message:
    if isinstance(m, Unreadable) or m.value() != UNREAD:
        return m
    return undecompressed(TopicPartition(m.topic(), m.partition()), m.offset(), m.offset(), "odd codec")


def remedy(topic: str) -> str:
    return (
        "run the newer release of kstreams_py that wrote it; or, if another program did (`kafka-acls --list --topic "
        f"{topic}` shows who may write there)"
    )


def place(name: str, frame: str, outcome: Outcome, enter: Enter, rows: Mapping[str, tuple[Junk, str]]) -> Place:
    """A place whose message is `frame` around the reason of each row. `{0}` is the offset, `{1}` the one after it."""

    def enter_all(given: Mapping[str, tuple[Junk, str]], request: pytest.FixtureRequest) -> dict[str, Outcome]:
        found, messages, expected = {}, {}, {}
        for each, (junk, why) in given.items():
            found[each], messages[each], at = enter(junk, request)
            expected[each] = frame.replace("{why}", why).replace("{0}", str(at)).replace("{1}", str(at + 1))
        wrong = {each: (messages[each], why) for each, why in expected.items() if messages[each] != why}
        assert not wrong, wrong
        return found

    return Place(name, {each: (row, outcome) for each, row in rows.items()}, enter_all)


def write(cluster: MemoryCluster, topic: str, junk: Junk) -> int:
    """Writes a record; returns its offset. The topics are not compacted here: those refuse a record without a key."""
    cluster.append(topic, junk.value, junk.key, junk.headers, partition=0)
    return cluster.ends([TopicPartition(topic, 0)])[TopicPartition(topic, 0)] - 1


def put(cluster: MemoryCluster, record: Any) -> None:
    """Writes a record of the framework's own."""
    cluster.append(record[0], record[1], record[2], record[7], partition=0)


def environment_of(cluster: MemoryCluster) -> Environment:
    return Environment(cluster, MemoryRegistry(), ks.Settings(), cluster.clock)


@contextmanager
def refused() -> Iterator[list[str]]:
    """What ends a worker or a command names the record."""
    messages: list[str] = []
    with pytest.raises(KStreamsError) as raised:
        yield messages
    assert raised.value.exit_status in (2, 5), "another start would not help"
    messages.append(str(raised.value))


# Marks, and dead letters.

MARKS: Final = "__ks.g.replayed"
LETTER: Final = Letter(LetterPlace("dead", 0, 0), 0, "g.p", b"h" * 16, "E", "", "", (), "")


def enter_mark(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    cluster = OddCluster()
    cluster.create_topics([("dead", 1, -1, {}), (MARKS, 1, -1, {})])
    graph = ks.Graph("g", errors="dead")
    reader = LetterReader(graph, environment_of(cluster))
    marks = [LetterPlace("dead", 0, offset) for offset in (3, 5)]
    put(cluster, mark_record(MARKS, marks[0], LETTER, reader.topics))
    key = None if junk.key is None else junk.key.replace(b"ID", reader.topics["dead"].topic_id.encode())
    reader.expect_marks()
    at = write(cluster, MARKS, junk._replace(key=key))
    put(cluster, mark_record(MARKS, marks[1], LETTER, reader.topics))
    if junk.value == UNREAD:
        with refused() as messages:
            reader.marks()
        return REFUSED, messages[0], at
    counted = {LetterPlace("dead", 0, 9)} if junk.key == MARK_KEY else set()
    assert reader.marks().keys() == {*marks, *counted}
    (message,) = reader.unreadable
    return PASSED_OVER, message, at


MARK_KEY: Final = b'["dead", "ID", 0, 9]'
MARK_VALUE: Final = b'{"processor": "g.p", "delivery_hash": "00"}'
NO_PLACE: Final = "its key names no place"
NO_DELIVERY: Final = "its value names no delivery"


def enter_letter(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    cluster = OddCluster()
    cluster.create_topics([("dead", 1, -1, {})])
    graph = ks.Graph("g", errors="dead")
    at = write(cluster, "dead", junk)
    reader = LetterReader(graph, environment_of(cluster))
    assert [*reader.letters()] == []
    (message,) = reader.unreadable
    return PASSED_OVER, message, at


# Beginnings.

BEGINNINGS: Final = "__ks.g.beginnings"


def enter_beginning(junk: Junk, request: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    caplog: pytest.LogCaptureFixture = request.getfixturevalue("caplog")
    caplog.clear()
    cluster = OddCluster()
    cluster.create_topics([(BEGINNINGS, 1, -1, {})])
    own = [BegunPartition("p", "in", "id", number) for number in (0, 1)]
    put(cluster, begun_record(BEGINNINGS, own[0], 2))
    at = write(cluster, BEGINNINGS, junk)
    write(cluster, BEGINNINGS, junk)
    put(cluster, begun_record(BEGINNINGS, own[1], 2))
    with caplog.at_level(logging.WARNING):
        assert read_begun(cluster, BEGINNINGS) == (dict.fromkeys(own, 2), {})
        (message,) = caplog.messages
        write(cluster, BEGINNINGS, Junk(None, junk.key))
        read_begun(cluster, BEGINNINGS)
    assert caplog.messages == [message], "a tombstone ends that"
    return PASSED_OVER, message, at


BEGUN_KEY: Final = b'["p", "in", "id", 0]'
NO_PARTITION: Final = "its key names no partition"
NO_NUMBER: Final = "its value names neither an offset nor a number of partitions"

# Journals.

JOURNAL: Final = "__ks.g.p.journal"
HASH: Final = b"h" * 16
SNAPSHOT: Final = Snapshot("g.p", 0, (InputStart("in", "", 3),))
ATTEMPT: Final = Attempt(RecordType.NIL, SNAPSHOT.hash, HASH, 1, "w", (InputStart("in", "", 4),))
CHOICES: Final = Choices((("in", 3),), (InputStart("in", "id", 3),))


def enter_choices(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    cluster = OddCluster()
    cluster.create_topics([(JOURNAL, 1, -1, {})])
    put(cluster, choices_record(JOURNAL, 0, CHOICES, CHOICES_ALONE))
    at = write(cluster, JOURNAL, junk)
    with refused() as messages:
        ChoicesJournal(JOURNAL, cluster).newest(0)
    return REFUSED, messages[0], at


def journal_of(cluster: MemoryCluster, outputs_on: str = "") -> DeliveryJournal:
    graph = ks.Graph("g")
    graph.topic("in")
    graph.topic("out", cluster=outputs_on)
    graph.map("in", to="out", id="p", persistence="journal")(lambda value: value)
    (processor,) = graph.processors
    cluster.create_topics([("in", 1, -1, {}), (JOURNAL, 1, -1, JOURNAL_SETTINGS)])
    if (delivered := graph.delivered(processor)) is not None:
        cluster.named("west").create_topics([("out", 1, -1, {}), (delivered, 1, -1, DELIVERED_SETTINGS)])
    else:
        cluster.create_topics([("out", 1, -1, {})])
    topics = check_topics(graph, cluster)
    return DeliveryJournal(JOURNAL, processor, environment_of(cluster), topics, "g.p", "g.p.0", delivered)


def enter_journal(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    cluster = OddCluster()
    journal = journal_of(cluster)
    if junk.headers != [("ks-type", CHOICES_ALONE.encode())]:  # else only such choices are in the journal
        put(cluster, snapshot_record(JOURNAL, SNAPSHOT))
    at = write(cluster, JOURNAL, junk)
    with refused() as messages:
        journal.look(0, {"in": 3})
    return REFUSED, messages[0], at


DELIVERED: Final = "__ks.g.p.delivered"


def enter_delivered(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    cluster = OddCluster()
    journal = journal_of(cluster, "west")
    put(cluster.named("west"), attempt_record(DELIVERED, 0, ATTEMPT, NEWEST))
    at = write(cluster.named("west"), DELIVERED, junk._replace(key=NEWEST))
    with refused() as messages:
        journal.look(0, {"in": 3})
    return REFUSED, messages[0], at


def typed(kind: str, value: bytes | None, key: bytes | None = None) -> Junk:
    return Junk(value, key, [("ks-type", kind.encode())])


def versioned(kind: str, value: bytes, version: bytes) -> dict[str, tuple[Junk, str]]:
    """Rows of records in Avro, behind the byte of their version."""
    cut = len(value) - 1
    return {
        f"{kind}: other bytes": (
            typed(kind, b"\xff\xfe"),
            f"it starts with b'\\xff', not with a version up to {version!r}",
        ),
        f"{kind}: no value": (typed(kind, None), "it is empty"),
        f"{kind}: an empty value": (typed(kind, b""), "it is empty"),
        f"{kind}: cut off": (typed(kind, value[:cut]), "it is cut off, or does not fit its schema: EOFError()"),
        f"{kind}: its version alone": (typed(kind, version), "it is cut off, or does not fit its schema: EOFError()"),
        f"{kind}: more than the schema": (typed(kind, value + b"\0"), "it has bytes after its record"),
    }


_TYPES: Final = {
    "no type": (Junk(b"junk", b"key"), "its type is ''"),
    "another type": (typed("foreign", b"junk"), "its type is 'foreign'"),
    "a type of a megabyte": (typed("x" * 1_000_000, b"junk"), f"its type is {'x' * 40!r}"),
    "a name of a header that is not UTF-8": (Junk(b"junk", None, [(BAD_NAME, b"")]), UNREAD_HEADERS),
    "a batch that cannot be decompressed": (Junk(UNREAD), UNREAD_WHY),
}

# States.

CHANGELOG: Final = "__ks.g.s.changelog"
START_OVER: Final = (
    f"stop all workers, delete '{CHANGELOG}' (`kstreams topics delete --processor`), and set the group to the start "
    "(`kstreams recover reset --to-beginning`), so that the state is made again"
)


def enter_changelog(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    cluster = OddCluster()
    cluster.create_topics([(CHANGELOG, 1, -1, {})])
    known = Changelog(CHANGELOG, cluster.topics([CHANGELOG])[CHANGELOG].topic_id)
    at = write(cluster, CHANGELOG, junk)

    def open_store(*_: object) -> TaskStore:
        return TaskStore(MemoryBase(), ks.String(), ks.Json())

    stores = Stores("p: state 's'", known, {"in": "id"}, cluster, open_store, cluster.clock)
    tp = TopicPartition("in", 0)
    with refused() as messages:
        stores.restore({tp: 1}, [tp])
    return REFUSED, messages[0].removeprefix("p: state 's': "), at


def enter_reader(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    cluster = OddCluster()
    cluster.create_topics([(CHANGELOG, 1, -1, {})])
    graph = ks.Graph("g")
    graph.topic("in")
    graph.topic("out")
    graph.map("in", to="out", id="p", state=ks.State("s", key=ks.String(), value=ks.Json()))(lambda v, state: v)
    at = write(cluster, CHANGELOG, junk)
    with refused() as messages:
        read_state(graph, graph.processors[0], cluster, MemoryRegistry())
    return REFUSED, messages[0], at


UNNAMED: Final = {
    "no key": (Junk(b"1"), "it has no key"),
    "a batch that cannot be decompressed": (Junk(UNREAD), UNREAD_WHY),
}


def positions(value: bytes, why: str) -> tuple[Junk, str]:
    return Junk(value, POSITIONS_KEY), why


def inputs(value: object, *, allow: bool = False) -> bytes:
    return json.dumps({"changelog": "id", "inputs": value}).encode()


POSITIONS: Final = write_positions("id", {"in": Position("id", 1)})
NO_INPUTS: Final = "it names no changelog, or no inputs"
NO_OFFSET: Final = "an input has no topic id, or no offset"

# Objects of event ordering.


def ordering() -> ks.Graph:
    graph = ks.Graph("g", errors="dead")
    events = graph.topic("in", key=ks.String(), value=ks.Json())
    graph.ordered(events, to=graph.topic("out", value=ks.Json()), id="p")(lambda value: value)
    return graph


OBJECTS: Final = "__ks.g.p-order.changelog"


def enter_object(junk: Junk, _: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    """What commands refuse; of what is held, the worker says the same."""
    graph = ordering()
    with TestDriver(graph) as driver:
        headers = [(ID_HEADER, b"2"), (PREV_HEADER, b"1")]
        driver.send("in", 1, key="a", headers=headers)
        driver.run()
        driver.crash()
        at = write(driver.cluster, OBJECTS, junk)
        with refused() as messages:
            list(find_objects(graph, graph.processors[0], driver._environment))
        if (junk.key or b"").startswith(RESERVED + b"held."):
            driver.restart()
            with refused() as of_worker:
                driver.run()
            assert of_worker == messages
    return REFUSED, messages[0].replace(repr(junk.key), "KEY"), at


HELD: Final = RESERVED + b"held." + (1).to_bytes(8) + b"b"


def held(content: bytes = b"1", **fields: Any) -> bytes:
    kept = {
        "id": 2,
        "at": 1.0,
        "place": ["in", 0, 0],
        "stamp": [1, 5],
        "has_value": True,
        "headers": [[ID_HEADER, "Mg=="]],
    }
    return json.dumps(kept | fields).encode() + b"\n" + content


FIELDS: Final = "is not a held event: it lacks fields, or has others"


def of_event(value: bytes, why: str = FIELDS, key: bytes = HELD) -> tuple[Junk, str]:
    return Junk(value, key), why


def of_object(kind: bytes, value: bytes, why: str) -> tuple[Junk, str]:
    return Junk(value, RESERVED + kind + b".a"), why


# Runs of pipelines.

RUNS: Final = "__ks.table.runs"
RUN: Final = Published("g.sums", {"n": "int"}, (PipelineRun(1, "{}", 1, 1, 1.0, 1.0),))


def enter_runs(junk: Junk, request: pytest.FixtureRequest) -> tuple[Outcome, str, int]:
    graph = ks.Graph("g")
    target, source = graph.topic("table", value=ks.Json()), graph.topic("in", value=ks.Json())
    graph.pipeline(source, to=target, mode=Mode.APPEND, id="sums")(lambda frame: frame)
    pipeline: Pipeline = graph.pipelines[0]
    cluster = OddCluster()
    cluster.create_topics([("table", 1, -1, {}), (RUNS, 1, -1, {})])
    write(cluster, RUNS, Junk(json.dumps(RUN.as_content()).encode(), b"table"))
    is_ours = junk.value != UNREAD and junk.key in (None, b"table")
    at = write(cluster, RUNS, junk._replace(key=b"table") if is_ours else junk)
    table = KafkaTable(pipeline, target, ks.Settings())
    table.close()
    table._cluster = cluster  # type: ignore[assignment]
    if not is_ours:
        caplog: pytest.LogCaptureFixture = request.getfixturevalue("caplog")
        caplog.clear()
        assert table.read() == RUN
        return PASSED_OVER, caplog.messages[0], at
    with refused() as messages:
        table.read()
    return REFUSED, messages[0], at


def runs(**content: Any) -> Junk:
    return Junk(json.dumps(RUN.as_content() | content).encode(), b"table")


NO_RUNS: Final = "it has no runs of a pipeline"
_RUN: Final[list[Any]] = list(RUN.last)


PLACES: Final = [
    place(
        "a record among the marks of replayed letters",
        f"{MARKS}[0]@{{0}} is not a mark of a replayed dead letter: {{why}}: {remedy(MARKS)}: it is passed over",
        PASSED_OVER,
        enter_mark,
        {
            "no key": (Junk(MARK_VALUE), "it has no key"),
            "a key of other bytes": (Junk(MARK_VALUE, b"\xff\xfe"), NOT_UTF_8),
            "an empty key": (Junk(MARK_VALUE, b""), NOTHING),
            "a key that is cut": (
                Junk(MARK_VALUE, MARK_KEY[:7]),
                "it is not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)",
            ),
            "a key that is nested deep": (Junk(MARK_VALUE, DEEP), DEEP_WHY),
            "a key of three": (Junk(MARK_VALUE, b'["dead", "ID", 0]'), NO_PLACE),
            "a key with texts for numbers": (Junk(MARK_VALUE, b'["dead", "ID", "0", "9"]'), NO_PLACE),
            "a key with a list for its topic": (Junk(MARK_VALUE, b'[["dead"], "ID", 0, 9]'), NO_PLACE),
            "a key with an offset that none is": (Junk(MARK_VALUE, b'["dead", "ID", 0, 1e400]'), NO_PLACE),
            "a key that is null": (Junk(MARK_VALUE, b"null"), NO_PLACE),
            "a tombstone": (Junk(None, b"{}"), NO_PLACE),
        },
    ),
    place(
        "a record under the key of a mark",
        f"{MARKS}[0]@{{0}} is not a mark of a replayed dead letter: {{why}}: {remedy(MARKS)}: the dead letter "
        "dead[0]@9, which its key names, counts as replayed",
        PASSED_OVER,
        enter_mark,
        {
            "other bytes": (Junk(b"\xff\xfe", MARK_KEY), NOT_UTF_8),
            "empty": (Junk(b"", MARK_KEY), NOTHING),
            "nested deep": (Junk(DEEP, MARK_KEY), DEEP_WHY),
            "a list": (Junk(b"[]", MARK_KEY), NO_DELIVERY),
            "a hash that is a number": (Junk(b'{"processor": "g.p", "delivery_hash": 0}', MARK_KEY), NO_DELIVERY),
            "a reason that is a number": (Junk(MARK_VALUE[:-1] + b', "discarded": 0}', MARK_KEY), NO_DELIVERY),
        },
    ),
    place(
        "marks that cannot be decompressed",
        f"{MARKS}[0]@{{0}} is not a mark of a replayed dead letter: {{why}}: {remedy(MARKS)}: marks may be among them, "
        "and their dead letters would be sent twice: delete the replayed dead letters, then the records of "
        f"{MARKS}[0] before offset {{1}} (`kafka-delete-records`): the remaining dead letters then count as not "
        "replayed",
        REFUSED,
        enter_mark,
        {"a batch that cannot be decompressed": (Junk(UNREAD), UNREAD_WHY)},
    ),
    place(
        "a record among dead letters",
        "dead[0]@{0} is {why}",
        PASSED_OVER,
        enter_letter,
        {
            "a tombstone": (Junk(None), "a tombstone, not a dead letter"),
            "other bytes": (Junk(b"\xff\xfe"), f"not a dead letter: {NOT_AVRO}"),
            "a batch that cannot be decompressed": (Junk(UNREAD), f"not a dead letter: {UNREAD_WHY}"),
        },
    ),
    place(
        "a record among beginnings",
        f"{BEGINNINGS}[0]@{{0}} is not a record of a beginning: {{why}}: {remedy(BEGINNINGS)}: it is passed over, with "
        "1 others of this topic",
        PASSED_OVER,
        enter_beginning,
        {
            "no key": (Junk(b"1"), "it has no key"),
            "a key of other bytes": (Junk(b"1", b"\xff"), NOT_UTF_8),
            "a key that is nested deep": (Junk(b"1", DEEP), DEEP_WHY),
            "a key with a list for its topic": (Junk(b"1", b'["p", ["in"], "id", 0]'), NO_PARTITION),
            "a key with True for its partition": (Junk(b"1", b'["p", "in", "id", true]'), NO_PARTITION),
            "other bytes": (Junk(b"\xff", BEGUN_KEY), NOT_UTF_8),
            "empty": (Junk(b"", BEGUN_KEY), NOTHING),
            "nested deep": (Junk(DEEP, BEGUN_KEY), DEEP_WHY),
            "a list": (Junk(b"[]", BEGUN_KEY), NO_NUMBER),
            "a number that none is": (Junk(b'{"partitions": 1e400}', BEGUN_KEY), NO_NUMBER),
            "a start that no offset is": (
                Junk(
                    b'{"partitions": 0, "start": 99999999999999999999, "policy": "earliest"}',
                    b'["p start", "in", "id", 0]',
                ),
                NO_NUMBER,
            ),
            "a batch that cannot be decompressed": (Junk(UNREAD), UNREAD_WHY),
        },
    ),
    place(
        "a record in the journal of an alts",
        f"{JOURNAL}[0]@{{0}} is not a record of a journal: {{why}}: {remedy(JOURNAL)}: stop all workers, and delete "
        "the records of this partition before offset {1} (`kafka-delete-records`): the choices of steps that are not "
        "committed are lost, and these may read their inputs in another order",
        REFUSED,
        enter_choices,
        _TYPES
        | versioned(CHOICES_ALONE, CHOICES.encode(), b"\x02")
        | versioned(RecordType.SNAPSHOT, snapshot_record(JOURNAL, SNAPSHOT)[1] or b"", b"\x01")
        | {
            "no type": (Junk(b"junk", b"key"), "it starts with b'j', not with a version up to b'\\x02'"),
            "choices without a type, and more": (Junk(CHOICES.encode() + b"\0"), "it has bytes after its record"),
        },
    ),
    place(
        "a record in the journal of deliveries",
        f"p: partition 0: journal {JOURNAL}[0]: {JOURNAL}[0]@{{0}} is not a record of a journal: {{why}}: "
        f"{remedy(JOURNAL)}: decide where it goes on, and set it (`kstreams recover reset GRAPH p`), then start again",
        REFUSED,
        enter_journal,
        _TYPES
        | versioned(CHOICES_ALONE, CHOICES.encode(), b"\x02")
        | versioned(RecordType.SNAPSHOT, snapshot_record(JOURNAL, SNAPSHOT)[1] or b"", b"\x01")
        | versioned(RecordType.CHOICES, CHOICES.encode(), b"\x02")
        | versioned(RecordType.NIL, attempt_record(JOURNAL, 0, ATTEMPT)[1] or b"", b"\x01"),
    ),
    place(
        "a record beside outputs on another cluster",
        f"p: partition 0: journal {JOURNAL}[0]: {DELIVERED}[0]@{{0}} is not an attempt at a delivery: {{why}}: "
        f"{remedy(DELIVERED)}: decide where it goes on, and set it (`kstreams recover reset GRAPH p`), then start "
        "again",
        REFUSED,
        enter_delivered,
        _TYPES
        | {
            "a snapshot": (
                typed(RecordType.SNAPSHOT, snapshot_record(DELIVERED, SNAPSHOT)[1]),
                "its type is 'snapshot'",
            ),
            "an attempt that is cut": (
                typed(RecordType.NIL, (attempt_record(DELIVERED, 0, ATTEMPT)[1] or b"")[:9], NEWEST),
                "it is cut off, or does not fit its schema: EOFError('Expected 16 bytes, read 7')",
            ),
            "an empty value": (typed(RecordType.NIL, b"", NEWEST), "it is empty"),
        },
    ),
    place(
        "a change of a state",
        f"{CHANGELOG}[0]@{{0}} is not a change of a state: {{why}}: {remedy(CHANGELOG)}: {START_OVER}",
        REFUSED,
        enter_changelog,
        UNNAMED,
    ),
    place(
        "a change of a state, read by a command",
        f"{CHANGELOG}[0]@{{0}} is not a change of a state: {{why}}: {remedy(CHANGELOG)}: {START_OVER}",
        REFUSED,
        enter_reader,
        UNNAMED,
    ),
    place(
        "a record of positions in a changelog",
        f"{CHANGELOG}[0]@{{0}} is not a record of positions: {{why}}: {remedy(CHANGELOG)}: {START_OVER}",
        REFUSED,
        enter_changelog,
        {
            "other bytes": positions(b"\xff", NOT_UTF_8),
            "empty": positions(b"", NOTHING),
            "cut off": positions(
                POSITIONS[:10], "it is not JSON: Unterminated string starting at: line 1 column 2 (char 1)"
            ),
            "nested deep": positions(DEEP, DEEP_WHY),
            "a version alone": positions(b"\x01", NOTHING),
            "a list": positions(b"[]", NO_INPUTS),
            "inputs that are a list": positions(inputs([]), NO_INPUTS),
            "a number for the changelog": positions(b'{"changelog": 1, "inputs": {}}', NO_INPUTS),
            "an input of three": positions(inputs({"in": ["id", 1, 2]}), NO_OFFSET),
            "NaN": positions(inputs({"in": ["id", float("nan")]}), NO_OFFSET),
            "infinity": positions(inputs({"in": ["id", float("inf")]}), NO_OFFSET),
            "1e400": positions(b'{"changelog": "id", "inputs": {"in": ["id", 1e400]}}', NO_OFFSET),
            "a negative offset": positions(inputs({"in": ["id", -1]}), NO_OFFSET),
            "an offset of 65 bits": positions(inputs({"in": ["id", 2**64]}), NO_OFFSET),
            "True": positions(inputs({"in": ["id", True]}), NO_OFFSET),
            "a text": positions(inputs({"in": ["id", "1"]}), NO_OFFSET),
            "a number of 5,000 digits": positions(
                b"1" * 5_000, "it is not JSON: it has an integer of more than 4,300 digits"
            ),
        },
    ),
    place(
        "what is kept of the objects of event ordering",
        f"{OBJECTS}[0]: the value of key KEY{{why}}: {remedy(OBJECTS)}: {START_OVER.replace(CHANGELOG, OBJECTS)}",
        REFUSED,
        enter_object,
        {
            "held: other bytes": of_event(b"\xff", f" is not a held event: {NOT_UTF_8}"),
            "held: empty": of_event(b"", f" is not a held event: {NOTHING}"),
            "held: nested deep": of_event(DEEP, f" is not a held event: {DEEP_WHY}"),
            "held: a list": of_event(b"[]", f" {FIELDS}"),
            "held: a text for its id": of_event(held(id="2"), f" {FIELDS}"),
            "held: an id before its predecessor": of_event(held(id=1), f" {FIELDS}"),
            "held: a time that none is": of_event(held(at=float("nan")), f" {FIELDS}"),
            "held: of another partition": of_event(held(place=["in", 7, 0]), f" {FIELDS}"),
            "held: a place of two": of_event(held(place=["in", 0]), f" {FIELDS}"),
            "held: a timestamp of 70 bits": of_event(held(stamp=[1, 2**70]), f" {FIELDS}"),
            "held: headers that are none": of_event(
                held(headers=["ab"]), " is not a held event: a header is not a name and a value"
            ),
            "held: a value of a header that is not in base 64": of_event(
                held(headers=[["a", "?"]]), " is not a held event: Only base64 data is allowed"
            ),
            "held: half of a surrogate": of_event(
                held(headers=[["\ud800", None]]),
                " is not a held event: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not "
                "allowed",
            ),
            "held: no predecessor": of_event(held(), f" {FIELDS}", RESERVED + b"held.b"),
            "a stop of other bytes": of_object(b"stop", b"\xff", f" is not a stop of an object: {NOT_UTF_8}"),
            "a stop of two": of_object(
                b"stop", b'["why", 1]', " is not a stop of an object: it lacks fields, or has others"
            ),
            "a stop nested deep": of_object(b"stop", DEEP, f" is not a stop of an object: {DEEP_WHY}"),
            "an object that is cut": of_object(
                b"object",
                b"\0" * 9,
                ": b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00' is not a state of an object: unpack_from requires "
                "a buffer of at least 17 bytes for unpacking 17 bytes at offset 0 (actual buffer size is 9)",
            ),
        },
    ),
    place(
        "a record of the runs of a pipeline",
        f"{RUNS}[0]@{{0}} is not a record of the runs of a pipeline: {{why}}: {remedy(RUNS)}: write the previous "
        f"record again, as the newest; or delete {RUNS} and table, and create table: pipeline 'sums' then begins again",
        REFUSED,
        enter_runs,
        {
            "other bytes": (Junk(b"\xff"), NOT_UTF_8),
            "empty": (Junk(b""), NOTHING),
            "nested deep": (Junk(DEEP), DEEP_WHY),
            "a list": (Junk(b"[]"), NO_RUNS),
            "a number": (Junk(b"1"), NO_RUNS),
            "a reset by nobody": (Junk(b'{"reset_by": 1}'), "it names no pipeline, or no topic id"),
            "a topic id that is a list": (runs(topic_id=[]), "it names no pipeline, or no topic id"),
            "no runs": (runs(runs=[]), NO_RUNS),
            "runs that are a number": (runs(runs=1), f"{NO_RUNS}: TypeError(\"'int' object is not iterable\")"),
            "a run with a text for its number": (runs(runs=[["1", *_RUN[1:]]]), NO_RUNS),
            "a run that ended at infinity": (runs(runs=[[*_RUN[:4], float("inf"), 1.0]]), NO_RUNS),
            "columns that are numbers": (runs(columns={"n": 1}), NO_RUNS),
        },
    ),
    place(
        "a record beside the runs of a pipeline",
        f"{RUNS}[0]@{{0}} is not a record of the runs of a pipeline: {{why}}: {remedy(RUNS)}: it is passed over",
        PASSED_OVER,
        enter_runs,
        {
            "another key": (Junk(b"{}", b"another"), "its key is not 'table'"),
            "a batch that cannot be decompressed": (Junk(UNREAD), "its key is not 'table'"),
        },
    ),
]
