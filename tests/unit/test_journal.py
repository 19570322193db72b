"""processing/journal/: its records, the rule of recovery, and the journal of a processor on the cluster in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py import sinks
from kstreams_py.errors import GraphError, NotAuthorized, RecoveryUndecidable, Retriable, Unavailable
from kstreams_py.kafka.contracts import Output, ProducerMode
from kstreams_py.processing.journal import deliveries
from kstreams_py.processing.journal.deliveries import WINDOW, DeliveryJournal
from kstreams_py.processing.journal.records import (
    Attempt,
    OutputPlace,
    RecordType,
    Snapshot,
    Unit,
    attempt_record,
    choices_record,
    newest_unit,
    snapshot_record,
)
from kstreams_py.processing.journal.recovery import OutputFound, Recovery, recover
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry, TestDriver
from tests.unit.fakes import raise_error

JOURNAL = "__ks.g.p.journal"
IDS = {"a": "id-a", "b": "id-b"}
HASH = b"h" * 16
SNAPSHOT = Snapshot("g.p", 0, (InputStart("a", "id-a", 3), InputStart("b", "id-b", 7)))
CHOICES = Choices((("b", 9),), (InputStart("b", "id-b", 7),))
X, DEAD = OutputPlace("x", 1, 40, HASH), OutputPlace("dead", 0, 5, HASH)


def attempt(kind: RecordType, *places: OutputPlace, snapshot: Snapshot = SNAPSHOT, a: int = 3, b: int = 10) -> Attempt:
    inputs = (InputStart("a", "id-a", a), InputStart("b", "id-b", b))
    return Attempt(kind, snapshot.hash, HASH, 3, "w", inputs, places)


OUTPUT, ERROR, NIL = (attempt(RecordType.OUTPUT, X, DEAD), attempt(RecordType.ERROR, DEAD), attempt(RecordType.NIL))


@dataclass(frozen=True)
class Stored:
    """A record of a journal."""

    record: Output
    at: int = 0

    def topic(self) -> str:
        return self.record[0]

    def partition(self) -> int:
        return self.record[3]

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes | None:
        return self.record[1]

    def headers(self) -> Any:
        return self.record[7]


def stored(*records: Output) -> list[Any]:
    return [Stored(record, at) for at, record in enumerate(records)]


def of_type(kind: str, data: bytes | None) -> Output:
    return (JOURNAL, data, None, 0, None, None, 0, [("ks-type", kind.encode())])


RECORDS = {
    "snapshot": snapshot_record(JOURNAL, SNAPSHOT),
    "choices": choices_record(JOURNAL, 0, CHOICES),
    "output": attempt_record(JOURNAL, 0, OUTPUT),
    "error": attempt_record(JOURNAL, 0, ERROR),
    "nil": attempt_record(JOURNAL, 0, NIL),
}
OTHER = Snapshot("g.p", 0, (InputStart("a", "id-a", 3), InputStart("b", "id-b", 10)))


def foreign(offset: int, why: str) -> str:
    return (
        f"__ks.g.p.journal[0]@{offset} is not a record of a journal: {why}: run the newer release of kstreams_py that "
        "wrote it; or, if another program did (`kafka-acls --list --topic __ks.g.p.journal` shows who may write there)"
    )


# Records.


@pytest.mark.parametrize(
    ("names", "unit"),
    [
        ((), None),
        (("snapshot",), Unit(SNAPSHOT)),
        (("snapshot", "choices"), Unit(SNAPSHOT, CHOICES)),
        (("snapshot", "output"), Unit(SNAPSHOT, None, OUTPUT)),
        (("snapshot", "choices", "error"), Unit(SNAPSHOT, CHOICES, ERROR)),
        (("snapshot", "output", "nil"), Unit(SNAPSHOT, None, NIL)),
        (("snapshot", "output", "choices"), Unit(SNAPSHOT, CHOICES)),
        (("snapshot", "output", "snapshot"), Unit(SNAPSHOT)),
    ],
)
def test_newest_unit_is_what_follows_the_newest_snapshot(names: Sequence[str], unit: Unit | None) -> None:
    assert newest_unit(stored(*(RECORDS[name] for name in names)), 0) == unit


def test_records_have_their_type_partition_and_schema_version() -> None:
    assert {name: (r[0], r[2], r[3], r[7], (r[1] or b"")[:1]) for name, r in RECORDS.items()} == {
        "snapshot": (JOURNAL, None, 0, [("ks-type", b"snapshot")], b"\x01"),
        "choices": (JOURNAL, None, 0, [("ks-type", b"snapshot-alts")], b"\x02"),
        "output": (JOURNAL, None, 0, [("ks-type", b"attempt-output")], b"\x01"),
        "error": (JOURNAL, None, 0, [("ks-type", b"attempt-error")], b"\x01"),
        "nil": (JOURNAL, None, 0, [("ks-type", b"attempt-nil")], b"\x01"),
    }


def test_hash_of_a_snapshot_differs_by_processor_partition_and_each_input() -> None:
    others = [
        Snapshot("g.q", 0, SNAPSHOT.inputs),
        Snapshot("g.p", 1, SNAPSHOT.inputs),
        Snapshot("g.p", 0, SNAPSHOT.inputs[:1]),
        Snapshot("g.p", 0, (InputStart("a", "id-c", 3), InputStart("b", "id-b", 7))),
        OTHER,
    ]
    assert len({each.hash for each in (SNAPSHOT, *others)}) == 6
    assert Snapshot("g.p", 0, SNAPSHOT.inputs[::-1]).hash == SNAPSHOT.hash
    assert len(SNAPSHOT.hash) == 16


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([RECORDS["nil"]], "offset 0: it is of type attempt-nil, and there is no snapshot before it"),
        ([RECORDS["choices"]], "offset 0: it is of type snapshot-alts, and there is no snapshot before it"),
        ([RECORDS["snapshot"], of_type("foreign", b"")], foreign(1, "its type is 'foreign'")),
        ([of_type("", None)], foreign(0, "its type is ''")),
        (
            [of_type("snapshot", b"\x07" + (RECORDS["snapshot"][1] or b"")[1:])],
            foreign(0, "it starts with b'\\x07', not with a version up to b'\\x01'"),
        ),
        ([of_type("snapshot", (RECORDS["snapshot"][1] or b"") + b"more")], foreign(0, "it has bytes after its record")),
        (
            [snapshot_record(JOURNAL, OTHER), RECORDS["output"]],
            "offset 1: it is an attempt at a snapshot other than {'a': 3, 'b': 10}, which is the one before it",
        ),
    ],
)
def test_damaged_journal_is_named_with_the_offset_and_the_reason(records: Sequence[Output], message: str) -> None:
    with pytest.raises(RecoveryUndecidable) as raised:
        newest_unit(stored(*records), 0)
    assert str(raised.value) == message


@pytest.mark.parametrize("name", RECORDS)
def test_record_that_is_cut_off_or_tampered_with_is_damaged_or_another(name: str) -> None:
    kind, data = dict(RECORDS[name][7] or ())["ks-type"] or b"", RECORDS[name][1] or b""
    before = [] if name == "snapshot" else [RECORDS["snapshot"]]
    whole = newest_unit(stored(*before, RECORDS[name]), 0)
    for cut in range(len(data)):
        with pytest.raises(RecoveryUndecidable):
            newest_unit(stored(*before, of_type(kind.decode(), data[:cut])), 0)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            assert newest_unit(stored(*before, of_type(kind.decode(), flipped)), 0) != whole
        except RecoveryUndecidable:
            continue


# Recovery.

STOOD, MOVED = {"a": 3, "b": 7}, {"a": 3, "b": 10}
SAME, OTHERS, GONE = (
    dict.fromkeys((X, DEAD), found) for found in (OutputFound.SAME, OutputFound.OTHER, OutputFound.DELETED)
)


@pytest.mark.parametrize(
    ("unit", "committed", "found", "expected"),
    [
        (None, STOOD, {}, Recovery("1a")),
        (Unit(SNAPSHOT), STOOD, {}, Recovery("1b", SNAPSHOT)),
        (Unit(SNAPSHOT, CHOICES), STOOD, {}, Recovery("1c", SNAPSHOT, CHOICES)),
        (Unit(SNAPSHOT, None, OUTPUT), MOVED, SAME, Recovery("1d, 2, 3a")),
        (Unit(SNAPSHOT, None, OUTPUT), {"a": 4, "b": 12}, SAME, Recovery("1d, 2, 3a")),
        (Unit(SNAPSHOT, CHOICES, OUTPUT), MOVED, SAME, Recovery("1d, 2, 3a", None, CHOICES)),
        (Unit(SNAPSHOT, None, OUTPUT), STOOD, OTHERS, Recovery("1d, 2, 3b", SNAPSHOT)),
        (Unit(SNAPSHOT, CHOICES, OUTPUT), STOOD, OTHERS, Recovery("1d, 2, 3b", SNAPSHOT, CHOICES)),
        (Unit(SNAPSHOT, None, ERROR), MOVED, SAME, Recovery("1e, 2, 3a")),
        (Unit(SNAPSHOT, None, ERROR), STOOD, OTHERS, Recovery("1e, 2, 3b", SNAPSHOT)),
        (Unit(SNAPSHOT, None, NIL), MOVED, {}, Recovery("1f, 2, 3a")),
        (Unit(SNAPSHOT, None, OUTPUT), MOVED, GONE, Recovery("1d, 2, 3a")),
        (Unit(SNAPSHOT, None, OUTPUT), STOOD, GONE, Recovery("1d, 2, 3b", SNAPSHOT)),
        (Unit(SNAPSHOT, None, NIL), {"b": 10}, {}, Recovery("1f, 2, 3a")),
    ],
)
def test_recovery_takes_the_branch_of_the_newest_record(
    unit: Unit | None, committed: Mapping[str, int], found: Mapping[OutputPlace, OutputFound], expected: Recovery
) -> None:
    assert recover(unit, committed, IDS, found) == expected


JOINED = attempt(RecordType.OUTPUT, X, a=5)


@pytest.mark.parametrize("committed", [{"a": 3, "b": 7}, {"a": 5, "b": 7}, {"a": 3, "b": 12}, {"a": 5, "b": 10}])
def test_offsets_of_each_input_follow_a_delivery_to_another_cluster_by_themselves(committed: Mapping[str, int]) -> None:
    """While the inputs of a join get partitions, a worker may hold the one and not the other."""
    recovered = recover(Unit(SNAPSHOT, None, JOINED), committed, IDS, SAME, confirmed=True)
    assert recovered == Recovery("1d, 2, 3a", offsets={"a": 5, "b": 10})


@pytest.mark.parametrize(("committed", "confirmed"), [({"a": 4, "b": 10}, True), ({"a": 5, "b": 7}, False)])
def test_offsets_between_two_deliveries_to_another_cluster_are_not_guessed_at(
    committed: Mapping[str, int], confirmed: bool
) -> None:
    found = SAME if confirmed else OTHERS
    with pytest.raises(RecoveryUndecidable, match="the newest record is an attempt-output from a@3, b@7 to a@5, b@10"):
        recover(Unit(SNAPSHOT, None, JOINED), committed, IDS, found, confirmed)


REMADE = {"a": "id-a", "b": "id-new"}


@pytest.mark.parametrize(
    ("unit", "found", "branch"),
    [
        (Unit(SNAPSHOT, None, OUTPUT), SAME, "1d, 2, 3a"),
        (Unit(SNAPSHOT, CHOICES, ERROR), SAME, "1e, 2, 3a"),
        (Unit(SNAPSHOT, None, NIL), {}, "1f, 2, 3a"),
        (Unit(SNAPSHOT, None, OUTPUT), OTHERS, ""),
        (Unit(SNAPSHOT, None, OUTPUT), GONE, ""),
        (Unit(SNAPSHOT, CHOICES), {}, ""),
    ],
)
def test_input_that_was_created_again_begins_again_unless_a_delivery_is_open(
    unit: Unit, found: Mapping[OutputPlace, OutputFound], branch: str
) -> None:
    """Outputs tell, as its committed offset is that of other records."""
    if branch:
        assert recover(unit, {"a": 3, "b": 0}, REMADE, found) == Recovery(branch, None, unit.choices)
        return
    with pytest.raises(RecoveryUndecidable) as raised:
        recover(unit, {"a": 3, "b": 0}, REMADE, found)
    assert str(raised.value) == REMADE_SINCE


DELETED: Final = "dead[0]@5 may be deleted: it is below the first offset of its partition, or its topic is compacted"
REMADE_SINCE: Final = "a delivery was not committed, and 'b' was deleted and created again since"
OTHER_INPUTS: Final = (
    "a delivery of 'a', 'b' was not committed, and the processor reads 'a', 'c' now: start it once with the inputs "
    "that it had"
)
AT_SNAPSHOT: Final = "the newest record is a snapshot at a@3, b@7, and the committed offsets are a@3, b@10"
BETWEEN: Final = {"a": 3, "b": 8}
BOTH_THERE: Final = "x[1]@40 is there; dead[0]@5 is there"
NONE_THERE: Final = "x[1]@40 is not there; dead[0]@5 is not there"
ONE_THERE: Final = "x[1]@40 is there; dead[0]@5 is not there"
ONE_OTHER: Final = {X: OutputFound.SAME, DEAD: OutputFound.OTHER}


def newest(kind: str, at: str, outputs: str) -> str:
    """The message about an attempt, with the committed offsets and what is there of its outputs."""
    return (
        f"the newest record is an attempt-{kind} from a@3, b@7 to a@3, b@10, the committed offsets are {at}, and of "
        f"its outputs: {outputs}"
    )


CONTRADICTIONS: list[tuple[Unit, Mapping[str, int], Mapping[str, str], Mapping[OutputPlace, OutputFound], str]] = [
    (Unit(SNAPSHOT), MOVED, IDS, {}, AT_SNAPSHOT),
    (Unit(SNAPSHOT, None, OUTPUT), STOOD, IDS, SAME, newest("output", "a@3, b@7", BOTH_THERE)),
    (Unit(SNAPSHOT, None, OUTPUT), MOVED, IDS, OTHERS, newest("output", "a@3, b@10", NONE_THERE)),
    (Unit(SNAPSHOT, None, OUTPUT), MOVED, IDS, ONE_OTHER, newest("output", "a@3, b@10", ONE_THERE)),
    (Unit(SNAPSHOT, None, ERROR), BETWEEN, IDS, {DEAD: OutputFound.DELETED}, newest("error", "a@3, b@8", DELETED)),
    (Unit(SNAPSHOT, None, NIL), STOOD, IDS, {}, newest("nil", "a@3, b@7", "it writes no output")),
    (Unit(SNAPSHOT), STOOD, {"a": "id-a", "c": "id-c"}, {}, OTHER_INPUTS),
    (Unit(SNAPSHOT), STOOD, {"a": "id-a", "b": "id-new"}, {}, REMADE_SINCE),
]


@pytest.mark.parametrize(("unit", "committed", "ids", "found", "message"), CONTRADICTIONS)
def test_recovery_never_guesses_where_the_evidence_contradicts_itself(
    unit: Unit,
    committed: Mapping[str, int],
    ids: Mapping[str, str],
    found: Mapping[OutputPlace, OutputFound],
    message: str,
) -> None:
    with pytest.raises(RecoveryUndecidable) as raised:
        recover(unit, committed, ids, found)
    assert str(raised.value) == message


# The journal of a processor.

READS = {TopicPartition("a", 0): 3, TopicPartition("b", 0): 7}
MOVES = {TopicPartition("a", 0): 3, TopicPartition("b", 0): 10}
HIDES = "p: a transaction hides"
NEVER = "its coordinator () will not end it: it never ends by itself"
FIND, HERE = "kstreams transactions find-hanging", "--bootstrap-servers 127.0.0.1:9092"


class Bench:
    """A cluster with a journal and outputs, and what writes to them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock, transaction_timeout=900.0)
        self.cluster.create_topics([("x", 2, -1, {}), ("dead", 1, -1, {}), (JOURNAL, 1, -1, {})])
        graph = ks.Graph("g", errors="dead")
        graph.join(graph.topic("a"), graph.topic("b"), by="order", to=[graph.topic("x"), graph.topic("y")], id="p")(
            lambda v, w: {}
        )
        (processor,) = graph.processors
        self.cluster.create_topics([("y", 1, -1, {"cleanup.policy": "compact"})])
        topics = self.cluster.topics(["x", "y", "dead"])
        topics |= {name: replace(topics["x"], name=name, topic_id=known) for name, known in IDS.items()}
        environment = Environment(self.cluster, MemoryRegistry(), Settings(), self.clock)
        self.journal = DeliveryJournal(JOURNAL, processor, environment, topics, "g.p", "w")

    def append(self, *records: Output) -> None:
        for topic, value, key, partition, _, _, _, headers in records:
            self.cluster.append(topic, value, key, headers, partition=max(partition, 0))

    def begin(self, *records: Output, name: str = "stranger") -> Any:
        """Writes records in a transaction, and leaves it open."""
        producer = self.cluster.producer(ProducerMode(transactional=True, acks=-1, may_repeat=True), name)
        producer.init_transactions()
        producer.begin_transaction()
        producer.write(list(records))
        producer.flush()
        return producer

    def hide_output(self) -> Any:
        """Begins a transaction that hides the output of a delivery."""
        producer = self.begin(output("x", 1))
        self.append(RECORDS["snapshot"], place_of("x", 1, 0))
        return producer

    def recover(self, positions: Mapping[TopicPartition, int]) -> Mapping[int, Snapshot]:
        """Recovers; returns the snapshots that are in force then."""
        self.journal.recover(dict(positions))
        return self.journal.snapshots

    def start_of_journal(self) -> int:
        return self.cluster.starts([TopicPartition(JOURNAL, 0)])[TopicPartition(JOURNAL, 0)]


def output(topic: str, partition: int, digest: bytes = HASH) -> Output:
    return (topic, b"v", b"k", partition, None, None, 0, [("ks-hash", digest)])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_journal_that_is_empty_recovers_nothing(bench: Bench) -> None:
    assert (bench.journal.recover(READS), bench.journal.snapshots, bench.journal.choices) == ((READS, {}), {}, {})


def test_snapshot_and_choices_are_in_force_after_a_recovery_until_their_delivery(bench: Bench) -> None:
    bench.append(RECORDS["snapshot"], RECORDS["choices"])
    assert bench.journal.recover(READS) == (READS, {0: CHOICES})
    assert (bench.journal.snapshots, bench.journal.choices) == ({0: SNAPSHOT}, {0: CHOICES})
    bench.journal.deliver([0])
    assert bench.journal.snapshots == {}
    assert bench.journal.recover(READS) == (READS, {0: CHOICES})
    bench.journal.forget()
    assert (bench.journal.snapshots, bench.journal.choices) == ({}, {})


def place_of(topic: str, partition: int, offset: int) -> Output:
    return attempt_record(JOURNAL, 0, attempt(RecordType.OUTPUT, OutputPlace(topic, partition, offset, HASH)))


@pytest.mark.parametrize(
    ("written", "positions", "in_force"),
    [
        ([output("x", 1)], MOVES, {}),
        ([], READS, {0: SNAPSHOT}),
        ([output("x", 1, b"f" * 16)], READS, {0: SNAPSHOT}),
        ([("x", b"v", None, 1, None, None, 0, None)], READS, {0: SNAPSHOT}),
    ],
)
def test_outputs_are_read_back_and_recognized_by_their_hash(
    bench: Bench, written: Iterable[Output], positions: Any, in_force: Any
) -> None:
    bench.append(RECORDS["snapshot"], *written, place_of("x", 1, 0))
    assert bench.recover(positions) == in_force


def test_output_that_was_deleted_is_decided_by_the_committed_offsets(bench: Bench) -> None:
    bench.append(RECORDS["snapshot"], output("x", 1), output("x", 1), place_of("x", 1, 0))
    bench.cluster.truncate(TopicPartition("x", 1), 1)
    assert bench.recover(MOVES) == {}


@pytest.mark.parametrize(("positions", "in_force"), [(MOVES, {}), (READS, {0: SNAPSHOT})])
def test_output_that_may_be_compacted_away_is_decided_by_the_committed_offsets(
    bench: Bench, positions: Any, in_force: Any
) -> None:
    bench.begin(output("y", 0)).abort_transaction()  # a gap in the offsets, as compaction leaves one
    bench.append(RECORDS["snapshot"], output("y", 0), place_of("y", 0, 0))
    assert bench.recover(positions) == in_force


def test_output_that_is_declared_no_more_is_decided_by_offsets_behind_it(bench: Bench) -> None:
    places = OutputPlace("x", 1, 0, HASH), OutputPlace("gone", 0, 0, HASH)
    bench.append(RECORDS["snapshot"], output("x", 1), attempt_record(JOURNAL, 0, attempt(RecordType.OUTPUT, *places)))
    assert bench.recover(MOVES) == {}
    with pytest.raises(RecoveryUndecidable) as raised:
        bench.journal.recover(READS)
    assert str(raised.value) == (
        f"p: partition 0: journal {JOURNAL}[0]: a delivery from a@3, b@7 to a@3, b@10 may not be committed, and the "
        "processor no longer writes to 'gone': start it once with the outputs that it had: decide where "
        "it goes on, and set it (`kstreams recover reset GRAPH p`), then start again"
    )


def test_aborted_output_with_another_behind_it_is_not_there(bench: Bench) -> None:
    producer = bench.begin(output("x", 1))
    producer.abort_transaction()
    bench.append(RECORDS["snapshot"], output("x", 1), place_of("x", 1, 0))
    assert bench.recover(READS) == {0: SNAPSHOT}


def test_transaction_that_hides_an_output_is_waited_for(bench: Bench) -> None:
    producer = bench.hide_output()
    with pytest.raises(Retriable) as raised:
        bench.journal.recover(READS)
    hides = f"{HIDES} x[1]@0, where it may have written: `{FIND} --topic x {HERE}` shows whether it hangs"
    assert str(raised.value) == hides
    producer.commit_transaction()
    assert bench.recover(MOVES) == {}


@pytest.mark.parametrize(
    ("hangs", "remedy"),
    [
        (False, "its coordinator will end it: stop its producer, or wait for its time-out"),
        (True, f"{NEVER}: end it by `kstreams transactions abort --topic x --partition 1 --start-offset 0 {HERE}`"),
    ],
)
def test_transaction_that_hides_an_output_for_too_long_ends_the_worker(
    bench: Bench, hangs: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", bench.clock)
    producer = bench.hide_output()
    bench.begin(output("x", 1), name="behind it")
    found = bench.cluster.open_transactions(TopicPartition("x", 1))
    monkeypatch.setattr(bench.cluster, "open_transactions", lambda _: [replace(each, hangs=hangs) for each in found])
    for waited in (0, 39.9):
        bench.clock.advance(waited)
        with pytest.raises(Retriable):
            bench.journal.recover(READS)
    bench.clock.advance(0.1)
    with pytest.raises(Unavailable) as raised:
        bench.journal.recover(READS)
    number = found[0].producer_id
    assert str(raised.value) == (
        f"{HIDES} x[1]@0, where it may have written, for more than 40 s, and whether the delivery was committed is not "
        f"known without them: producer {number} epoch 0 (stranger) from offset 0, 40 s old: {remedy}, then start again"
    )
    producer.commit_transaction()
    assert bench.recover(MOVES) == {}


def test_transaction_that_ends_before_it_is_listed_ends_no_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = bench.hide_output()
    with pytest.raises(Retriable):
        bench.journal.recover(READS)
    monkeypatch.setattr(bench.cluster, "open_transactions", lambda _: ())
    bench.clock.advance(40)
    with pytest.raises(Retriable) as raised:
        bench.journal.recover(READS)
    assert str(raised.value) == f"{HIDES} x[1]@0, where it may have written, which has ended just now"
    producer.commit_transaction()
    assert bench.recover(MOVES) == {}


def test_transaction_that_hides_an_output_and_cannot_be_listed_is_found_by_a_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.hide_output()
    with pytest.raises(Retriable):
        bench.journal.recover(READS)
    monkeypatch.setattr(bench.cluster, "open_transactions", lambda _: raise_error(NotAuthorized("no rights")))
    bench.clock.advance(40)
    with pytest.raises(Unavailable) as raised:
        bench.journal.recover(READS)
    assert str(raised.value) == (
        f"{HIDES} x[1]@0, where it may have written, for more than 40 s, and which one is not known: no rights: end it "
        f"by the command that `{FIND} --topic x {HERE}` prints, then start again"
    )


def test_transaction_that_is_open_on_the_journal_is_waited_for(bench: Bench) -> None:
    producer = bench.begin(RECORDS["snapshot"])
    with pytest.raises(Retriable) as raised:
        bench.journal.recover(READS)
    assert str(raised.value) == (
        f"{HIDES} journal {JOURNAL}[0] from offset 0 on: `{FIND} --topic {JOURNAL} {HERE}` shows whether it hangs"
    )
    producer.commit_transaction()
    assert bench.recover(READS) == {0: SNAPSHOT}


def test_snapshot_is_found_before_more_attempts_than_one_window_has(bench: Bench) -> None:
    bench.append(RECORDS["snapshot"], *[place_of("x", 1, 9)] * (3 * WINDOW))
    assert bench.recover(READS) == {0: SNAPSHOT}


def test_choices_of_a_processor_that_had_no_journal_are_followed(bench: Bench) -> None:
    bench.append((JOURNAL, CHOICES.encode(), None, 0, None, None, 0, [("ks-type", b"alts-choices")]))
    assert (bench.journal.recover(READS), bench.journal.snapshots) == ((READS, {0: CHOICES}), {})


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([RECORDS["nil"]], "offset 0: it is of type attempt-nil, and there is no snapshot before it"),
        ([RECORDS["snapshot"], RECORDS["nil"]], newest("nil", "a@3, b@7", "it writes no output")),
    ],
)
def test_contradiction_names_processor_partition_journal_and_remedy(
    bench: Bench, records: Sequence[Output], reason: str
) -> None:
    bench.append(*records)
    with pytest.raises(RecoveryUndecidable) as raised:
        bench.journal.recover(READS)
    assert str(raised.value) == (
        f"p: partition 0: journal {JOURNAL}[0]: {reason}: decide where it goes on, and set it (`kstreams "
        "recover reset GRAPH p`), then start again"
    )
    assert raised.value.exit_status == 5


def test_deliveries_delete_what_is_below_the_newest_snapshot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "TRUNCATED_EVERY", 2)
    bench.append(RECORDS["snapshot"], RECORDS["nil"], RECORDS["snapshot"], RECORDS["nil"])
    bench.journal.deliver([0])
    assert bench.start_of_journal() == 0
    bench.journal.deliver([0])
    assert bench.start_of_journal() == 2
    assert bench.recover(MOVES) == {}


LEFT = 16
"""The most records that stay: of the deliveries after which the older ones are deleted, and of the one that does it."""


@pytest.fixture
def journaled(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestDriver]:
    """A processor with two tasks, whose journals are cut after 8 of their deliveries."""
    monkeypatch.setattr(deliveries, "TRUNCATED_EVERY", 8)
    graph = ks.Graph("g")
    declare(graph, persistence=ks.Journal(batch=1))
    with TestDriver(graph, partitions=2) as driver:
        yield driver


def deliver(driver: TestDriver, count: int, partition: int) -> None:
    for _ in range(count):
        driver.send("in", b"value", partition=partition)
    driver.run()


def kept(driver: TestDriver) -> list[int]:
    """How many records of each task its journal has."""
    numbers = [m.partition() for m in driver.cluster.records(JOURNAL)]
    return [numbers.count(0), numbers.count(1)]


def test_journals_of_workers_that_start_again_before_they_delete_stay_bounded(journaled: TestDriver) -> None:
    for _ in range(20):
        deliver(journaled, 3, partition=0)
        journaled.crash()
        journaled.advance(60.0)
        journaled.restart()
        assert kept(journaled)[0] <= LEFT
    assert len(journaled.values("out")) == 60


def test_journal_of_a_task_with_few_records_is_cut_beside_one_with_many(journaled: TestDriver) -> None:
    for _ in range(20):
        deliver(journaled, 7, partition=0)
        deliver(journaled, 1, partition=1)
        assert max(kept(journaled)) <= LEFT
    assert len(journaled.values("out")) == 160


def test_function_sees_no_record_before_its_snapshot_is_committed() -> None:
    calls: list[bytes] = []
    graph = ks.Graph("g")
    graph.sink(graph.topic("in"), id="p", persistence=ks.Journal(batch=1))(calls.append)
    with TestDriver(graph, partitions=1) as driver:
        driver.send("in", b"one")
        driver.run()
        for number, request in enumerate(("add_offsets", "produce", "commit_transaction"), 2):
            driver.cluster.faults.begin_outage(20.0, [request])
            driver.send("in", b"%d" % number)
            for _ in range(15):
                driver.step()
            assert (len(calls), driver.committed("p")) == (number - 1, {TopicPartition("in", 0): number - 1})
            driver.advance(20.0)
            driver.run()
    assert calls == [b"one", b"2", b"3", b"4"]


# The declaration.


def declare(graph: ks.Graph, **options: Any) -> None:
    graph.map(graph.topic("in"), to=graph.topic("out"), id="p", **options)(lambda value: value)


@pytest.mark.parametrize(
    ("persistence", "journal"),
    [("transaction", None), ("journal", ks.Journal(1_000)), (ks.Journal(batch=1), ks.Journal(1))],
)
def test_persistence_chooses_the_journal(persistence: Any, journal: ks.Journal | None) -> None:
    graph = ks.Graph("g")
    declare(graph, persistence=persistence)
    (processor,) = graph.processors
    assert (processor.journal, graph.journal_topic(processor)) == (journal, journal and "__ks.g.p.journal")
    assert ("deliveries of" in graph.describe()) is (journal is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"persistence": "disk"},
            "processor 'p': persistence 'disk' is not known: choose 'transaction', 'journal' or Journal(batch=...)",
        ),
        (
            {"persistence": "journal", "guarantee": "at_least_once"},
            (
                "processor 'p' has a journal and is at_least_once, which commits outputs and offsets apart: give it "
                "persistence='transaction', or guarantee exactly_once"
            ),
        ),
        (
            {"persistence": "journal", "concurrency": 2},
            (
                "processor 'p' has a journal and calls that overlap, which do not end in the order in which they are "
                "recorded: give it persistence='transaction', or a plain function without concurrency"
            ),
        ),
        (
            {"persistence": "journal", "hash_header": False},
            (
                "processor 'p' has a journal and outputs without the delivery hash, by which they are recognized: "
                "leave hash_header out, or give it persistence='transaction'"
            ),
        ),
    ],
)
def test_combinations_that_a_journal_excludes_are_refused_with_the_reason(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraphError) as raised:
        declare(ks.Graph("g"), **options)
    assert str(raised.value) == message


def test_rows_of_a_target_exclude_a_journal() -> None:
    graph = ks.Graph("g")
    target = sinks.SQLite("rows.db", table="t", columns=("value",), evidence="hash")
    with pytest.raises(GraphError) as raised:
        graph.sink(graph.topic("in"), to=target, id="p", persistence="journal")(lambda value: (value,))
    assert str(raised.value) == (
        f"processor 'p' has a journal and stores rows in {target}, which keeps evidence of its own: give it "
        "persistence='transaction'"
    )


@pytest.mark.parametrize("batch", [0, 10_001, True, "7"])
def test_batch_of_a_journal_is_a_number_from_1_to_10_000(batch: Any) -> None:
    with pytest.raises(GraphError) as raised:
        ks.Journal(batch=batch)
    assert str(raised.value) == f"Journal: batch is {batch!r}: give a number from 1 to 10,000"
