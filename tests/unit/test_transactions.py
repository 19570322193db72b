"""Transactions that hang: which they are, what they hold back, what was decided about them, and how they are shown."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kstreams_py as ks
from kstreams_py.cli import transactions as command_line
from kstreams_py.errors import BrokerUnavailable, KStreamsError, Retriable, SettingsError, UserMistake
from kstreams_py.kafka.log_batches import Batch, Log, Prepared, committed_offsets, log_key, prepared
from kstreams_py.kafka.transaction_admin import Looked, TransactionAdmin
from kstreams_py.kafka.transactions import Coordinated, OpenTransaction, Writer, match
from kstreams_py.operations.transactions.abort import Transactions
from kstreams_py.operations.transactions.hanging import (
    NOT_DECIDED,
    NOT_READ,
    CommitDecision,
    FoundTransaction,
    HeldBack,
    as_fields,
    decide,
    describe,
    hold,
    is_found,
    order,
    topics_of,
)
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings

OUT, IN, OFFSETS = TopicPartition("out", 3), TopicPartition("in", 0), TopicPartition("__consumer_offsets", 7)


# Which transactions hang.


def writer(number: int, start: int | None = None) -> Writer:
    """A producer with epoch 3 and a transaction that begins at ten times its number."""
    return Writer(number, 3, 0, 10 * number if start is None else start, 5.0)


def coordinated(number: int, state: str, epoch: int, *partitions: TopicPartition) -> Coordinated:
    return Coordinated(f"id-{number}", state, number, epoch, 0, 60.0, 2.0, frozenset(partitions))


def test_transaction_hangs_if_its_coordinator_will_not_end_it_on_this_partition() -> None:
    """Epoch 3 of each: 2 is ongoing, the id of 3 has a newer epoch, 4 ends, 5 is on another partition.

    6 is not listed: it hangs, or the user lacks DESCRIBE on its id. 1 ends and 7 begins between the two looks, and 8
    ends and begins its next one.
    """
    before = [writer(number) for number in (8, 6, 5, 4, 3, 2, 1)]
    after = [writer(8, 99), *(writer(number) for number in (7, 6, 5, 4, 3, 2))]
    known = {
        1: coordinated(1, "Empty", 3),
        2: coordinated(2, "Ongoing", 3, OUT),
        3: coordinated(3, "Ongoing", 4, OUT),
        4: coordinated(4, "PrepareCommit", 4, OUT),
        5: coordinated(5, "Ongoing", 3, IN),
        8: coordinated(8, "CompleteCommit", 3),
    }
    assert match(OUT, before, known, after) == tuple(
        OpenTransaction(number, 3, 0, 10 * number, 5.0, name, hangs=hangs, state=state, started_at=started)
        for number, name, hangs, state, started in (
            (2, "id-2", False, "Ongoing", 2.0),
            (3, "id-3", True, "Ongoing", None),
            (4, "id-4", False, "PrepareCommit", 2.0),
            (5, "id-5", True, "Ongoing", None),
            (6, "", None, "", None),
        )
    )


def test_mutation_of_a_coordinator_whose_epoch_does_not_count_hides_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Coordinated, "will_end", lambda self, partition, _: partition in self.partitions)
    with pytest.raises(AssertionError):
        test_transaction_hangs_if_its_coordinator_will_not_end_it_on_this_partition()


HANGING = OpenTransaction(4, 1, 0, 120, 1_000.0, "shop.price.0", hangs=True, state="CompleteCommit")
ALIVE = replace(HANGING, hangs=False, state="Ongoing", written_at=1_000.0, started_at=900.0)
UNSHOWN = replace(HANGING, hangs=None, state="", transactional_id="")


@pytest.mark.parametrize(
    ("transaction", "now", "expected"),
    [
        (HANGING, 1_000.0, True),  # whatever its age
        (ALIVE, 1_000.0, True),  # its begin counts, not its last record
        (ALIVE, 999.9, False),
        (UNSHOWN, 1_099.9, False),
        (UNSHOWN, 1_100.0, True),
    ],
)
def test_transaction_is_found_if_it_hangs_or_is_older_than_the_limit(
    transaction: OpenTransaction, now: float, expected: bool
) -> None:
    assert is_found(transaction, 100.0, now) is expected


# What is in the logs.


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def offset_key(group: str, topic: str, partition: int, version: int = 1) -> bytes:
    return struct.pack(">h", version) + text(group) + text(topic) + struct.pack(">i", partition)


def offset_value(offset: int) -> bytes:
    return struct.pack(">hq", 4, offset) + b"\xff\xff\xff\xff\x01" + bytes(9)


def test_id_that_is_not_utf8_is_not_known_and_no_broker_is_asked() -> None:
    assert TransactionAdmin(Settings(bootstrap_servers="127.0.0.1:1")).described("\udcff") is None


def test_committed_offsets_are_those_of_the_last_records_of_each_group_and_partition() -> None:
    member_key = struct.pack(">h", 2) + text("shop")
    batches = [
        Batch(0, 2, 4, True, None, ((offset_key("shop", "in", 0), offset_value(5)), (member_key, b"any"))),
        Batch(2, 0, 4, True, True),
        Batch(
            3,
            4,
            4,
            True,
            None,
            (
                (offset_key("shop", "in", 0, version=0), offset_value(9)),
                (offset_key("shop", "in", 1), None),  # a tombstone
                (None, b"no key"),
                (offset_key("käse", "in", 12), offset_value(1)),
            ),
        ),
    ]
    assert committed_offsets(batches) == {"shop": {IN: 9}, "käse": {TopicPartition("in", 12): 1}}


def log_value(
    version: int, producer_id: int, status: int, partitions: dict[str, list[int]] | None, updated_ms: int
) -> bytes:
    """A value of __transaction_state, by TransactionLogValue.json of Kafka 4.3."""
    head = struct.pack(">hqhib", version, producer_id, 3, 60_000, status)
    if version == 0:
        topics = b"".join(
            text(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
            for name, numbers in (partitions or {}).items()
        )
        array = struct.pack(">i", -1 if partitions is None else len(partitions)) + topics
        return head + array + struct.pack(">qq", updated_ms, 1_000)
    topics = b"".join(
        bytes([len(name) + 1])
        + name.encode()
        + bytes([len(numbers) + 1])
        + struct.pack(f">{len(numbers)}i", *numbers)
        + b"\0"
        for name, numbers in (partitions or {}).items()
    )
    array = bytes([0 if partitions is None else len(partitions) + 1]) + topics
    return head + array + struct.pack(">qq", updated_ms, 1_000) + b"\x01\x02\x01\x02"


@pytest.mark.parametrize("version", [0, 1])
def test_decisions_are_the_records_of_the_id_that_prepare_an_end(version: int) -> None:
    key = log_key("shop.price.0")
    both = {"out": [3, 4], "in": [0]}
    values = [
        (key, log_value(version, 4, 0, None, 1)),
        (key, log_value(version, 4, 1, both, 2)),
        (log_key("shop.price.1"), log_value(version, 5, 2, both, 3)),
        (key, log_value(version, 4, 2, both, 4_500)),
        (key, log_value(version, 4, 4, {}, 5)),
        (key, None),
        (key, log_value(version, 4, 3, {"out": [3]}, 6_000)),
    ]
    assert list(prepared([Batch(0, 7, -1, False, None, tuple(values))], "shop.price.0")) == [
        Prepared(4, True, frozenset({OUT, TopicPartition("out", 4), IN}), 4.5),
        Prepared(4, False, frozenset({OUT}), 6.0),
    ]


def test_name_longer_than_a_byte_of_length_is_read() -> None:
    name = "t" * 200
    topics = b"\x02" + b"\xc9\x01" + name.encode() + b"\x02" + struct.pack(">i", 1) + b"\0"
    value = struct.pack(">hqhib", 1, 4, 3, 60_000, 2) + topics + struct.pack(">qq", 1_000, 0) + b"\0"
    batch = Batch(0, 1, -1, False, None, ((log_key("id"), value),))
    assert list(prepared([batch], "id")) == [Prepared(4, True, frozenset({TopicPartition(name, 1)}), 1.0)]


def decision(commits: bool, at: float, *partitions: TopicPartition, producer_id: int = 4) -> Prepared:
    return Prepared(producer_id, commits, frozenset(partitions), at)


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([], CommitDecision(None, NOT_DECIDED)),
        ([decision(True, 1_001.0, OUT)], CommitDecision(True)),
        ([decision(True, 999.0, OUT), decision(False, 1_001.0, OUT, IN)], CommitDecision(False)),
        ([decision(True, 1_001.0, OUT), decision(False, 1_002.0, IN)], CommitDecision(True)),
        ([decision(True, 1_001.0, OUT, producer_id=5)], CommitDecision(None, NOT_DECIDED)),
        ([decision(True, 999.0, OUT)], CommitDecision(None, NOT_DECIDED)),  # of the transaction before
    ],
    ids=["none", "committed", "aborted", "next one elsewhere", "other producer", "earlier"],
)
def test_decision_is_the_last_that_names_producer_and_partition_after_all_records(
    decisions: list[Prepared], expected: CommitDecision
) -> None:
    assert decide(decisions, True, OUT, HANGING) == expected
    unread = CommitDecision(None, NOT_READ) if expected.is_committed is None else expected
    assert decide(decisions, False, OUT, HANGING) == unread


LOG = Log(
    (
        Batch(120, 2, 4, True),
        Batch(122, 3, -1, False),  # without a transaction
        Batch(125, 4, 5, True),
        Batch(129, 5, 6, True),
        Batch(134, 0, 5, True, commits=True),
        Batch(135, 0, 6, True, commits=False),
        Batch(136, 1, 4, True),
        Batch(137, 6, 7, True),
        Batch(143, 7, -1, False),
        Batch(150, 8, 5, True),
        Batch(158, 0, 5, True, commits=True),
        Batch(159, 9, 8, True),
    ),
    is_complete=True,
)


@pytest.mark.parametrize(
    ("starts", "waiting", "behind"),
    [([], 3 + 4 + 7 + 8, None), ([137], 3 + 4, 137), ([159, 125], 3, 125), ([100], 0, 100)],
    ids=["alone", "one behind", "two behind", "one before"],
)
def test_records_that_wait_are_committed_ones_before_the_next_open_transaction(
    starts: list[int], waiting: int, behind: int | None
) -> None:
    others = [replace(HANGING, producer_id=9, start=start) for start in starts]
    assert hold(LOG, HANGING, others) == HeldBack(3, {}, waiting, behind, is_complete=True)


# How they are shown.

ON_OUTPUT = FoundTransaction(OUT, HANGING, HeldBack(1, {}, 1_234, None, True), CommitDecision(True))
ON_OFFSETS = FoundTransaction(
    OFFSETS, HANGING, HeldBack(2, {"shop": {IN: 5}}, 0, 300, False), CommitDecision(None, NOT_DECIDED)
)
LIVING = FoundTransaction(OUT, ALIVE)
HEAD = "producer 4 epoch 1 (shop.price.0) from offset 120"
OWN = "2 records of its own for good"
WILL_NOT_END = "its coordinator (CompleteCommit) will not end it: it never ends by itself"


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (
            ON_OUTPUT,
            [
                f"out[3]: {HEAD}, 60 s old: {WILL_NOT_END}",
                "  its coordinator has committed it: a commit makes 1 record of its own visible",
                "  1,234 records of other, committed transactions wait behind it",
                "  kstreams transactions commit --topic out --partition 3 --start-offset 120 -b x",
            ],
        ),
        (
            replace(ON_OUTPUT, held=HeldBack(1, {}, 1_234, 300, True), decision=CommitDecision(False)),
            [
                f"out[3]: {HEAD}, 60 s old: {WILL_NOT_END}",
                "  its coordinator did not commit it; an abort discards 1 record of its own for good",
                "  1,234 records of other, committed transactions wait behind it",
                "  readers of committed records stop then at offset 300, where another transaction is open",
                "  kstreams transactions abort --topic out --partition 3 --start-offset 120 -b x",
            ],
        ),
        (
            ON_OFFSETS,
            [
                f"__consumer_offsets[7]: {HEAD}, 60 s old: {WILL_NOT_END}",
                f"  whether it was committed is not known: {NOT_DECIDED}; an abort discards at least {OWN}",
                "  it pins the positions of group 'shop', and would commit in[0] at 5",
                "  kstreams transactions abort --topic __consumer_offsets --partition 7 --start-offset 120 -b x",
            ],
        ),
        (
            LIVING,
            [
                f"out[3]: {HEAD}, 160 s old: its coordinator will end it",
                "  do not end it: start its producer again, which ends it, or wait for the timeout of the transaction",
            ],
        ),
    ],
    ids=["committed", "aborted", "offsets", "alive"],
)
def test_transaction_is_shown_with_what_it_holds_back_and_its_command(
    found: FoundTransaction, lines: list[str]
) -> None:
    assert describe(found, 1_060.0, " -b x").splitlines() == lines


def test_transaction_as_json_has_all_that_is_known() -> None:
    common = {
        "partition": 7,
        "start_offset": 120,
        "transactional_id": "shop.price.0",
        "producer_id": 4,
        "producer_epoch": 1,
    }
    assert as_fields(ON_OFFSETS, 1_060.0, " -b x") == common | {
        "topic": "__consumer_offsets",
        "state": "CompleteCommit",
        "seconds": 60.0,
        "hangs": True,
        "committed": None,
        "records": 2,
        "waiting": 0,
        "readers_stop_at": 300,
        "complete": False,
        "positions": {"shop": [{"topic": "in", "partition": 0, "offset": 5}]},
        "command": "kstreams transactions abort --topic __consumer_offsets --partition 7 --start-offset 120 -b x",
    }
    assert as_fields(LIVING, 1_060.0) == common | {
        "topic": "out",
        "partition": 3,
        "state": "Ongoing",
        "seconds": 160.0,
        "hangs": False,
        "committed": None,
    }


def test_outputs_are_ended_before_committed_offsets() -> None:
    late = replace(ON_OUTPUT, transaction=replace(HANGING, start=121))
    zero = replace(ON_OUTPUT, partition=TopicPartition("zebra", 0))
    assert order([ON_OFFSETS, zero, late, ON_OUTPUT]) == [ON_OUTPUT, late, zero, ON_OFFSETS]


def test_topics_of_a_graph_are_all_that_its_transactions_touch() -> None:
    graph = ks.Graph("shop", errors="shop.errors")
    graph.alts(graph.topic("a"), graph.topic("b"), to=graph.topic("c"), id="any")(lambda value: value)
    graph.map("a", to="c", id="count", state=ks.State("counts"))(lambda value, state: value)
    graph.ordered("b", to="c", id="apply")(lambda value: value)
    graph.pipeline("a", to=graph.topic("d", value=ks.Json()), id="copy", mode="append")(lambda rows: rows)
    assert topics_of(graph) == {
        *("a", "b", "c", "d", "shop.errors", "__consumer_offsets", "__ks.shop.beginnings", "__ks.shop.replayed"),
        *("__ks.shop.any.journal", "__ks.shop.counts.changelog", "__ks.shop.apply-order.changelog", "__ks.d.runs"),
    }


# The command, with an admin whose answers are given.


class Admin:
    """Answers as a broker whose topics `out` and __consumer_offsets have open transactions; keeps the markers."""

    def __init__(self, *, unread: str = "", log: KStreamsError | None = None) -> None:
        self.opened: dict[TopicPartition, list[OpenTransaction]] = {OUT: [HANGING]}
        self.markers: list[tuple[TopicPartition, int, bool]] = []
        self.unread, self._log = unread, log

    def partitions(self, topics: Any = None) -> dict[str, int]:
        return {name: 8 for name in ("out", "__consumer_offsets") if topics is None or name in topics}

    def look(self, partitions: list[TopicPartition]) -> Looked:
        refused = {tp: Retriable("no leader") for tp in partitions if str(tp) == self.unread}
        return Looked({tp: tuple(self.opened.get(tp, ())) for tp in partitions if tp not in refused}, refused)

    def max_timeout(self) -> float | None:
        return None

    def read(self, partition: TopicPartition, start: int, producer_id: int) -> Log:
        return Log((Batch(start, 1, producer_id, True),), is_complete=True)

    def decisions(self, transactional_id: str) -> tuple[tuple[Prepared, ...], bool]:
        if self._log is not None:
            raise self._log
        return (), True

    def write_marker(self, partition: TopicPartition, transaction: OpenTransaction, *, commits: bool) -> None:
        self.markers.append((partition, transaction.start, commits))
        self.opened[partition].remove(transaction)


def run(monkeypatch: pytest.MonkeyPatch, admin: Admin, *arguments: str, typed: str = "") -> Result:
    monkeypatch.setattr(command_line, "TransactionAdmin", lambda _: admin)
    return CliRunner().invoke(command_line.app, [*arguments], input=typed)


PLACE = ("--topic", "out", "--partition", "3", "--start-offset", "120")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("find-hanging", "--older-than", "soon"),
            "--older-than 'soon': write a number with s, m, h or d, such as 15m",
        ),
        (("list", "--state", "Ongoin"), "--state 'Ongoin': did you mean Ongoing?"),
        (("abort", *PLACE, "--json"), "--json does not ask: add --yes or --dry-run"),
    ],
)
def test_option_that_does_not_fit_is_refused_before_a_request(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    admin = Admin()
    ended = run(monkeypatch, admin, *arguments)
    assert (type(ended.exception), str(ended.exception), ended.output) == (SettingsError, message, "")
    assert admin.markers == []


def test_partition_that_cannot_be_looked_at_is_no_proof_that_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(unread="out[1]")
    ended = run(monkeypatch, admin, "find-hanging")
    assert (ended.exit_code, ended.stderr) == (1, "not looked at: out[1]: no leader\n")
    admin.opened.clear()
    ended = run(monkeypatch, admin, "find-hanging")
    assert (type(ended.exception), ended.stdout, ended.stderr) == (
        BrokerUnavailable,
        "",
        "not looked at: out[1]: no leader\n",
    )


def test_printed_command_names_the_cluster_as_it_was_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "a b.toml"
    config.touch()
    ended = run(monkeypatch, Admin(), "find-hanging", "--json", "-b", "x:1", "--config", str(config))
    assert json.loads(ended.stdout)["command"] == (
        "kstreams transactions abort --topic out --partition 3 --start-offset 120 --bootstrap-servers x:1 --config "
        f"'{config}'"
    )


def test_hanging_transactions_of_a_graph_are_looked_for_on_each_of_its_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config, file = tmp_path / "settings.toml", tmp_path / "app.py"
    config.write_text('[clusters.west]\nbootstrap_servers = "west:1"\n')
    file.write_text(
        "import kstreams_py as ks\n"
        "graph = ks.Graph('g')\n"
        "graph.map(graph.topic('in'), to=graph.topic('out', cluster='west'), errors='dead', id='p')(bytes)\n"
    )
    asked: list[tuple[str, list[str]]] = []

    def open_admin(settings: Settings) -> Admin:
        admin = Admin(unread="")
        admin.opened = {} if settings.bootstrap_servers == "east:1" else admin.opened

        def partitions(topics: Any = None) -> dict[str, int]:
            asked.append((settings.bootstrap_servers, sorted(topics)))
            return {tp.topic: tp.partition + 1 for tp in admin.opened}

        monkeypatch.setattr(admin, "partitions", partitions)
        return admin

    monkeypatch.setattr(command_line, "TransactionAdmin", open_admin)
    options = ["-b", "east:1", "--config", str(config)]
    ended = CliRunner().invoke(command_line.app, ["find-hanging", "--graph", str(file), "--json", *options])
    own = ["__consumer_offsets", "__ks.g.beginnings", "__ks.g.p.journal", "__ks.g.replayed", "in"]
    west = ["__ks.g.p.delivered", "dead", "out"]
    assert [each for each in asked if each[1]] == [("east:1", own), ("west:1", west)]
    assert json.loads(ended.stdout)["command"].endswith(f"--bootstrap-servers east:1 --config {config} --cluster west")
    asked.clear()
    CliRunner().invoke(command_line.app, ["find-hanging", "--graph", str(file), *options, "--cluster", "west"])
    assert [each for each in asked if each[1]] == [("west:1", west)]
    refused = CliRunner().invoke(command_line.app, ["list", *options, "--cluster", "wset"])
    assert str(refused.exception) == "--cluster 'wset' is not in the settings: did you mean west?"


def test_log_that_this_user_may_not_read_leaves_the_decision_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(monkeypatch, Admin(log=BrokerUnavailable("grant READ")), "abort", *PLACE, "--dry-run")
    assert "whether it was committed is not known: grant READ; an abort discards 1 record" in ended.stdout


@pytest.mark.parametrize(
    ("unread", "error", "message"),
    [
        (
            "",
            UserMistake,
            "producer 4 has outputs open too, which its next transaction would commit: nothing was changed",
        ),
        (
            "out[3]",
            BrokerUnavailable,
            "out[3] cannot be looked at: no leader; if producer 4 has outputs open there, its ",
        ),
    ],
)
def test_positions_are_not_ended_before_outputs_of_their_producer(
    unread: str, error: type[KStreamsError], message: str
) -> None:
    admin: Any = Admin(unread=unread)
    admin.opened[OFFSETS] = [HANGING]
    with pytest.raises(error) as refused:
        Transactions(admin).select(OFFSETS, 120, "abort")
    assert str(refused.value).startswith(message)
    admin.opened[OUT], admin.unread = [replace(HANGING, producer_id=5)], ""
    assert Transactions(admin).select(OFFSETS, 120, "abort").transaction == HANGING


@pytest.mark.parametrize("change", ["ended", "next", "alive"])
def test_transaction_that_changed_while_the_operator_was_asked_is_left_alone(change: str) -> None:
    admin: Any = Admin()
    transactions = Transactions(admin)
    found = transactions.select(OUT, 120, "abort")
    admin.opened[OUT] = {"ended": [], "next": [replace(HANGING, start=130)], "alive": [replace(HANGING, hangs=False)]}[
        change
    ]
    with pytest.raises(UserMistake, match=r"^the transaction on out\[3\] has changed since it was shown: nothing was "):
        transactions.end(found, "abort")
    assert admin.markers == []


def test_marker_that_ends_nothing_is_reported() -> None:
    admin: Any = Admin()
    transactions = Transactions(admin)
    found = transactions.select(OUT, 120, "abort")
    admin.opened[OUT] = [HANGING, HANGING]  # the marker takes one away
    with pytest.raises(BrokerUnavailable, match=r"^the marker was written to out\[3\], and the transaction is still "):
        transactions.end(found, "abort")


@pytest.mark.parametrize(("typed", "markers"), [("n\n", []), ("", []), ("y\n", [(OUT, 120, False)])])
def test_answer_decides_whether_a_marker_is_written(
    monkeypatch: pytest.MonkeyPatch, typed: str, markers: list[tuple[TopicPartition, int, bool]]
) -> None:
    admin = Admin()
    ended = run(monkeypatch, admin, "abort", *PLACE, typed=typed)
    assert (admin.markers, ended.exit_code) == (markers, 0 if markers else 1)
    assert ended.stdout.splitlines()[-1].endswith("aborted on out[3]" if markers else "nothing was changed")
