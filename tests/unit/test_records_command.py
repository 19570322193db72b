"""`kstreams send` and `kstreams tail` on a cluster in memory: what is written, what is printed, and exit statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import kstreams_py as ks
from kstreams_py.cli import options, records
from kstreams_py.errors import Abortable, BrokerUnavailable, RecordRefused, SettingsError, TopicError, UserMistake
from kstreams_py.kafka.contracts import ProducerMode
from kstreams_py.operations.records import send as sending
from kstreams_py.operations.records.tail import Tail
from kstreams_py.operations.records.topic import find_topic
from kstreams_py.records import Message, TopicPartition
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry, TestDriver
from tests.unit.test_dead_letters_command import Unclosed

SENSOR = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "celsius", "type": "double"}, {"name": "raw", "type": "bytes"}],
}
START = 1_600_000_000_000


class Terminal:
    """Runs the two commands on a cluster in memory, with a graph that declares some of its topics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock)
        self.registry = MemoryRegistry()
        self.graph = ks.Graph("shop", errors="shop.errors")
        self.graph.topic("shop.orders", key=ks.String(), value=ks.Json())
        self.graph.topic("shop.readings", key=ks.Bytes(), value=ks.Avro(SENSOR))
        self.graph.topic("shop.priced", value=ks.Json())
        self.graph.map("shop.orders", to="shop.priced", id="price")(lambda order: {"total": order["price"]})
        names = ("shop.orders", "shop.readings", "shop.priced", "shop.errors", "plain")
        self.cluster.create_topics([(name, 2, -1, {}) for name in names])
        self.app = typer.Typer()
        self.app.command()(records.send)
        self.app.command()(records.tail)
        monkeypatch.setattr(records, "load", lambda _: self.graph)
        monkeypatch.setattr(options, "KafkaCluster", lambda _: Unclosed(self.cluster))
        monkeypatch.setattr(options, "open_registry", lambda *_: self.registry)

    def run(self, *arguments: str, lines: str | bytes = "") -> Result:
        return CliRunner().invoke(self.app, list(arguments), input=lines)

    def send(self, *arguments: str, lines: str | bytes = "") -> Result:
        return self.run("send", *arguments, lines=lines)

    def tail(self, *arguments: str) -> list[Any]:
        done = self.run("tail", *arguments)
        assert done.exit_code == 0, done.exception
        return [json.loads(line) for line in done.stdout.splitlines()]

    def written(self, topic: str) -> list[tuple[Any, ...]]:
        return [(m.partition(), m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in self.cluster.records(topic)]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(monkeypatch)


def test_lines_are_sent_with_key_value_headers_partition_and_timestamp(terminal: Terminal) -> None:
    lines = [
        {"key": "a", "value": {"price": 1}, "headers": {"from": "web", "raw": {"hex": "00ff"}}, "partition": 1},
        {"value": None, "key": "b", "partition": 0, "timestamp": "2020-09-13T12:26:40Z", "headers": [["x", None]]},
        {"value": [1.5, "ü"], "partition": 0, "timestamp": START + 1},
    ]
    done = terminal.send("shop.orders", "--graph", "shop.py", lines="\n\n".join(map(json.dumps, lines)))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "3 sent to shop.orders\n")
    now = int(terminal.clock() * 1000)
    assert terminal.written("shop.orders") == [
        (0, b"b", None, [("x", None)], START),
        (0, None, '[1.5,"ü"]'.encode(), None, START + 1),
        (1, b"a", b'{"price":1}', [("from", b"web"), ("raw", b"\x00\xff")], now),
    ]


def test_without_a_graph_text_hex_and_json_are_sent_as_their_bytes(terminal: Terminal) -> None:
    contents = ["text", {"hex": "00ff"}, {"a": [1]}, 5, None]
    done = terminal.send("plain", lines="\n".join(json.dumps({"value": each, "partition": 0}) for each in contents))
    assert done.exit_code == 0
    assert [value for _, _, value, *_ in terminal.written("plain")] == [b"text", b"\x00\xff", b'{"a":[1]}', b"5", None]


def test_one_record_is_sent_from_its_options(terminal: Terminal) -> None:
    options = ("--key", "a", "--value", '{"price": 1}', "--header", "x=1=2", "--partition", "1")
    terminal.send("shop.orders", "--graph", "shop.py", *options)
    terminal.send("plain", "--value", '{"price": 1}', "--partition", "1")
    now = int(terminal.clock() * 1000)
    assert terminal.written("shop.orders") == [(1, b"a", b'{"price":1}', [("x", b"1=2")], now)]
    assert terminal.written("plain") == [(1, None, b'{"price": 1}', None, now)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--value", "{"], "value '{' is not JSON, as Json() asks: "),
        (["--value", "1", "--partition", "2"], "topic 'shop.orders' has no partition 2: it has 2, numbered from 0"),
        (["--value", "1", "--header", "x"], "header 'x': write name=value"),
        (["--value", "1", "--header", "\udcff=1"], "header '\\udcff': a name has no half of a surrogate pair"),
        (
            ["--key", "a"],
            "--key, --header and --partition need --value: add --value, or write these fields in the lines",
        ),
    ],
)
def test_one_record_that_is_wrong_is_refused(terminal: Terminal, options: list[str], reason: str) -> None:
    error = terminal.send("shop.orders", "--graph", "shop.py", *options).exception
    assert isinstance(error, UserMistake)
    assert str(error).startswith(reason)
    assert terminal.written("shop.orders") == []


BAD_LINES = {
    "{": "not JSON in UTF-8: Expecting property name",
    "NaN": "not JSON in UTF-8: NaN is not a JSON number",
    "5": 'not a JSON object: write {"value": ...}, with key, headers, partition and timestamp',
    '{"valeu": 1}': "field 'valeu' does not exist: did you mean value?",
    '{"key": "a"}': 'it has no value: add "value", which is null for a tombstone',
    '{"value": 1, "key": 5}': "key: 5 (int) is not a str",
    '{"value": 1, "partition": -1}': "partition -1: write a number from 0 on, or leave it out",
    '{"value": 1, "partition": 2}': "topic 'shop.orders' has no partition 2: it has 2, numbered from 0",
    '{"value": 1, "partition": true}': "partition True: write a number from 0 on, or leave it out",
    '{"value": 1, "timestamp": 0}': "timestamp: write milliseconds since 1970, above 0, or a time such as",
    '{"value": 1, "timestamp": "noon"}': "timestamp: write milliseconds since 1970, above 0, or a time such as",
    '{"value": 1, "timestamp": "2020-01-01T00:00"}': "timestamp '2020-01-01T00:00' has no time zone: add Z",
    '{"value": 1, "headers": 5}': "headers 5: write an object, or a list of [name, value]",
    '{"value": 1, "headers": [["a"]]}': "headers [['a']]: write an object, or a list of [name, value]",
    '{"value": 1, "headers": {"a": {"hex": "x"}}}': "headers {'a': {'hex': 'x'}}: write an object, or a list of",
    '{"value": 1, "headers": {"a\\u0000b": "1"}}': "header 'a\\x00b': a name has no zero character",
    '{"value": 1, "headers": [["\\ud800", "1"]]}': "header '\\ud800': a name has no half of a surrogate pair",
    '{"value": 1e400}': "not JSON in UTF-8: no float is near to 1e400",
    '{"value": 1, "undecoded": {"key": "not text"}}': "`kstreams tail` could not decode this record: ",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_line_is_refused_by_its_number_after_those_before_it_are_sent(terminal: Terminal, line: str) -> None:
    done = terminal.send("shop.orders", "--graph", "shop.py", lines=f'{{"value": 1}}\n\n{line}\n{{"value": 2}}\n')
    assert isinstance(done.exception, UserMistake)
    message = str(done.exception)
    assert message.startswith(f"line 3: {BAD_LINES[line]}")
    assert message.endswith("(1 sent; no record from line 3 on was sent)")
    assert [value for _, _, value, *_ in terminal.written("shop.orders")] == [b"1"]


def test_line_that_is_not_utf8_is_refused(terminal: Terminal) -> None:
    error = terminal.send("plain", lines=b'{"value": "\xff"}').exception
    assert isinstance(error, UserMistake)
    assert str(error).startswith("line 1: not JSON in UTF-8: ")


def test_value_that_does_not_fit_its_schema_is_refused_with_the_field(terminal: Terminal) -> None:
    done = terminal.send(
        "shop.readings", "--graph", "shop.py", lines='{"value": {"celsius": "warm", "raw": {"hex": ""}}}'
    )
    assert isinstance(done.exception, UserMistake)
    assert "field Reading.celsius is 'warm' (str), not double" in str(done.exception)


def test_lines_that_the_topic_refuses_are_named_and_the_others_are_sent(terminal: Terminal) -> None:
    terminal.cluster.create_topics([("compacted", 1, -1, {"cleanup.policy": "compact"})])
    lines = '{"value": 1}\n{"value": 2, "key": "a"}\n{"value": 3}\n{"value": 4, "key": "b"}'
    error = terminal.send("compacted", lines=lines).exception
    assert isinstance(error, RecordRefused)
    assert str(error) == "topic 'compacted' refuses a record without a key: not sent: line 1, 3 (2 sent)"
    assert [value for _, _, value, *_ in terminal.written("compacted")] == [b"2", b"4"]
    alone = terminal.send("compacted", "--value", "5").exception
    assert str(alone) == "topic 'compacted' refuses a record without a key"


def test_broker_that_does_not_answer_leaves_named_lines_in_doubt(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "UNCONFIRMED_MAX", 2)
    terminal.cluster.faults.inject("produce", nth=3, error=Abortable("no answer"), applied=False)
    error = terminal.send("plain", lines='{"value": 1}\n' * 5).exception
    assert isinstance(error, BrokerUnavailable)
    assert str(error) == "no answer (2 sent; lines 3 to 4 may or may not have been sent)"


def test_topics_that_do_not_exist_are_refused_with_a_suggestion(terminal: Terminal) -> None:
    for command in ("send", "tail"):
        missing = terminal.run(command, "plane").exception
        assert isinstance(missing, TopicError)
        assert str(missing).startswith("topic 'plane' does not exist: create it, ")
        foreign = terminal.run(command, "shop.order", "--graph", "shop.py").exception
        assert str(foreign) == "graph 'shop' has no topic 'shop.order': did you mean shop.orders?"


def test_dead_letters_cannot_be_sent(terminal: Terminal) -> None:
    error = terminal.send("shop.errors", "-g", "shop.py", "--value", "null").exception
    assert str(error).startswith("topic 'shop.errors' has the dead letters of the graph, which its workers write")


def test_what_tail_prints_is_what_send_takes(terminal: Terminal) -> None:
    lines = [
        {
            "value": {"celsius": 1.5, "raw": {"hex": "00ff"}},
            "key": {"hex": "ff"},
            "partition": 1,
            "timestamp": START + 5,
        },
        {"value": None, "key": "text", "partition": 0, "timestamp": START, "headers": [["a", "b"], ["a", None]]},
    ]
    assert terminal.send("shop.readings", "-g", "shop.py", lines="\n".join(map(json.dumps, lines))).exit_code == 0
    shown = terminal.run("tail", "shop.readings", "-g", "shop.py", "--from", "beginning").stdout
    assert list(map(json.loads, shown.splitlines())) == [
        {
            "topic": "shop.readings",
            "partition": 0,
            "offset": 0,
            "timestamp": "2020-09-13T12:26:40.000Z",
            "key": "text",
            "value": None,
            "headers": [["a", "b"], ["a", None]],
        },
        {
            "topic": "shop.readings",
            "partition": 1,
            "offset": 0,
            "timestamp": "2020-09-13T12:26:40.005Z",
            "key": {"hex": "ff"},
            "value": {"celsius": 1.5, "raw": {"hex": "00ff"}},
            "headers": [],
        },
    ]
    before = terminal.written("shop.readings")
    assert terminal.send("shop.readings", "-g", "shop.py", lines=shown).exit_code == 0
    assert sorted(terminal.written("shop.readings"), key=str) == sorted(before * 2, key=str)


def fill(terminal: Terminal, count: int = 25) -> None:
    """Writes numbers to both partitions, a second apart, each but the first behind a marker of a transaction."""
    for number in range(count):
        terminal.cluster.append("plain", str(number).encode(), None, None, START + number * 1000, number % 2)


def values(shown: list[Any]) -> list[int]:
    return [int(each["value"]) for each in shown]


def test_tail_prints_the_newest_by_time_and_from_where_it_is_told(terminal: Terminal) -> None:
    fill(terminal)
    assert values(terminal.tail("plain")) == list(range(15, 25))
    assert values(terminal.tail("plain", "-n", "3", "--partition", "1")) == [19, 21, 23]
    assert values(terminal.tail("plain", "-n", "100")) == list(range(25))
    assert values(terminal.tail("plain", "--from", "beginning")) == list(range(25))
    assert values(terminal.tail("plain", "--from", "beginning", "-n", "2")) == [0, 1]
    assert values(terminal.tail("plain", "--from", "11")) == [22, 23, 24]
    assert values(terminal.tail("plain", "--from", "2020-09-13T12:27:02+00:00")) == [22, 23, 24]
    assert values(terminal.tail("plain", "--from", "1h")) == []


def test_offset_outside_of_a_partition_is_reported(terminal: Terminal) -> None:
    fill(terminal, 4)
    terminal.cluster.truncate(TopicPartition("plain", 0), 1)
    deleted = terminal.run("tail", "plain", "--from", "0")
    assert deleted.stderr == "plain[0] begins at offset 1: earlier records were deleted\n"
    assert len(deleted.stdout.splitlines()) == 3
    beyond = terminal.run("tail", "plain", "--from", "3", "--partition", "0")
    assert (beyond.exit_code, beyond.stdout, beyond.stderr) == (0, "", "plain[0] ends at offset 2\n")


@pytest.mark.parametrize("begin", ["soon", "end"])
def test_beginnings_that_make_no_sense_are_refused(terminal: Terminal, begin: str) -> None:
    error = terminal.run("tail", "plain", "--from", begin).exception
    assert isinstance(error, SettingsError)
    assert str(error).startswith(f"--from {begin!r}: write" if begin == "soon" else "--from end waits for new records")


def test_open_and_aborted_transactions_are_not_printed(terminal: Terminal) -> None:
    producer = terminal.cluster.producer(ks_mode(), "t")
    producer.init_transactions()
    for value, ending in ((b"1", "commit"), (b"2", "abort"), (b"3", "")):
        producer.begin_transaction()
        producer.write([("plain", value, None, 0, None, None, 0, None)])
        producer.flush()
        if ending:
            getattr(producer, f"{ending}_transaction")()
    assert values(terminal.tail("plain")) == values(terminal.tail("plain", "--from", "beginning")) == [1]


def ks_mode() -> Any:
    return ProducerMode(transactional=True, acks=-1, may_repeat=False)


def test_bytes_that_do_not_decode_are_printed_with_the_reason(terminal: Terminal) -> None:
    terminal.cluster.append("shop.orders", b"{", b"\xff", [("ks-hash", b"abc"), ("none", None)], partition=0)
    (shown,) = terminal.tail("shop.orders", "--graph", "shop.py")
    assert (shown["key"], shown["value"], shown["headers"]) == (
        {"hex": "ff"},
        "{",
        [["ks-hash", {"hex": "616263"}], ["none", None]],
    )
    assert list(shown["undecoded"]) == ["key", "value"]


def test_bytes_without_a_graph_are_hex_and_the_remedy_is_said_once(terminal: Terminal) -> None:
    terminal.cluster.append("plain", b"\xff", partition=0)
    terminal.cluster.append("plain", b"\xfe", partition=0)
    done = terminal.run("tail", "plain")
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == [{"hex": "ff"}, {"hex": "fe"}]
    assert done.stderr == "some records are not text: add --graph to decode them with its serdes\n"


def test_dead_letters_are_printed_with_their_inputs_decoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(monkeypatch)
    with TestDriver(terminal.graph, registry=terminal.registry) as driver:
        monkeypatch.setattr(options, "KafkaCluster", lambda _: Unclosed(driver.cluster))
        driver.send("shop.orders", {"quantity": 1}, key="order-7")
        driver.run()
        driver.cluster.append("shop.errors", b"{", partition=0)
        shown = {str(each.get("undecoded")): each for each in terminal.tail("shop.errors", "--graph", "shop.py")}
    bad = shown.pop(next(reason for reason in shown if reason != "None"))
    assert (bad["value"], list(bad["undecoded"])) == ("{", ["value"])
    letter = shown.pop("None")["value"]
    assert (letter["error"], letter["message"]) == ("builtins.KeyError", "'price'")
    assert [(each["key"], each["value"]) for each in letter["inputs"]] == [("order-7", {"quantity": 1})]
    assert not shown


def test_uncommitted_records_are_printed_with_what_became_of_them(terminal: Terminal) -> None:
    leave_open(terminal)
    shown = [(each["value"], each.get("fate")) for each in terminal.tail("plain", "--uncommitted")]
    assert shown == [("0", "aborted"), ("1", None), ("2", "pending"), ("3", "pending")]
    assert [each["value"] for each in terminal.tail("plain")] == ["1"]
    first = terminal.tail("plain", "--uncommitted", "--from", "beginning", "-n", "2")
    assert [(each["value"], each.get("fate")) for each in first] == [("0", "aborted"), ("1", None)]


def test_uncommitted_records_of_many_pages_are_printed_with_what_became_of_each(terminal: Terminal) -> None:
    producer = terminal.cluster.producer(ks_mode(), "t")
    producer.init_transactions()
    for number in range(60):
        producer.begin_transaction()
        producer.write([("plain", b"%d" % number, None, 0, None, None, 0, None) for _ in range(10)])
        producer.commit_transaction() if number % 3 else producer.abort_transaction()
    expected = [(f"{number}", None if number % 3 else "aborted") for number in range(60) for _ in range(10)]
    shown = terminal.tail("plain", "--uncommitted", "--from", "beginning")
    assert [(each["value"], each.get("fate")) for each in shown] == expected
    newest = terminal.tail("plain", "--uncommitted", "-n", "400")
    assert [(each["value"], each.get("fate")) for each in newest] == expected[-400:]


def test_committed_record_deleted_while_it_is_looked_at_is_not_called_aborted(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(terminal)
    read = terminal.cluster.read

    def read_and_delete(tp: TopicPartition, start: int = 0, limit: int | None = None, *, committed: bool = True) -> Any:
        found = read(tp, start, limit, committed=committed)
        if not committed and found:
            terminal.cluster.truncate(tp, found[2].offset())
        return found

    monkeypatch.setattr(terminal.cluster, "read", read_and_delete)
    shown = [(each["value"], each.get("fate")) for each in terminal.tail("plain", "--uncommitted", "--partition", "0")]
    assert shown == [("0", None), ("1", None), ("2", "pending"), ("3", "pending")]


def test_record_of_a_compacted_topic_that_no_committed_reader_sees_has_unknown_fate(terminal: Terminal) -> None:
    terminal.cluster.create_topics([("compacted", 1, -1, {"cleanup.policy": "compact,delete"})])
    producer = terminal.cluster.producer(ks_mode(), "t")
    producer.init_transactions()
    for value in (b"0", b"1", b"2"):
        producer.begin_transaction()
        producer.write([("compacted", value, b"key", 0, None, None, 0, None)])
        if value != b"2":
            producer.commit_transaction() if value == b"1" else producer.abort_transaction()
    producer.flush()
    shown = [(each["value"], each.get("fate")) for each in terminal.tail("compacted", "--uncommitted")]
    assert shown == [("0", "unknown"), ("1", None), ("2", "pending")]


def test_line_of_an_uncommitted_record_is_not_sent(terminal: Terminal) -> None:
    leave_open(terminal)
    done = terminal.send("plain", lines=terminal.run("tail", "plain", "--uncommitted").stdout)
    assert isinstance(done.exception, UserMistake)
    assert str(done.exception) == (
        'line 1: this record is not committed (aborted): leave the line out, or its "fate" (0 sent; no record from '
        "line 1 on was sent)"
    )


def leave_open(terminal: Terminal) -> None:
    """Writes 0 to 3 to a partition: aborted, committed, in a transaction that stays open, and behind it."""
    producer = terminal.cluster.producer(ks_mode(), "stuck")
    producer.init_transactions()
    for number, end in enumerate(("abort_transaction", "commit_transaction", "flush")):
        producer.begin_transaction()
        producer.write([("plain", b"%d" % number, None, 0, None, None, 0, None)])
        producer.flush()
        getattr(producer, end)()
    terminal.cluster.append("plain", b"3", partition=0)


class Watched:
    """Follows a topic whose records come while nothing else is there to be read."""

    def __init__(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.terminal = terminal
        self.events: list[Any] = []
        clock = terminal.clock
        self.environment = Environment(terminal.cluster, terminal.registry, ks.Settings(), clock, self.sleep)
        self.reader = Tail(self.environment, find_topic(self.environment, "plain"))

    def sleep(self, seconds: float) -> None:
        self.terminal.clock.advance(seconds)
        if self.events:
            self.events.pop(0)()

    def follow(self) -> Iterator[Message]:
        return self.reader.follow(self.reader.ends())


def test_followed_topic_yields_new_records_of_new_partitions_and_after_an_outage(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(terminal, 4)
    watched = Watched(terminal, monkeypatch)
    cluster, inject = terminal.cluster, terminal.cluster.faults.inject
    watched.events = [
        lambda: cluster.append("plain", b"4", partition=1),
        lambda: [inject("ends", nth=nth, error=BrokerUnavailable("no broker answers")) for nth in (1, 2)],
        lambda: cluster.append("plain", b"5", partition=0),
        lambda: cluster.grow("plain", 3),
        lambda: cluster.append("plain", b"6", partition=2),
    ]
    assert [(m.partition(), m.value()) for m in islice(watched.follow(), 3)] == [(1, b"4"), (0, b"5"), (2, b"6")]
    assert [r.message for r in caplog.records] == ["no broker answers; waiting"]


def test_followed_topic_ends_without_a_record_once_nobody_reads_what_is_printed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(terminal, monkeypatch)
    answers = iter([True, True, False])
    assert list(watched.reader.follow(watched.reader.ends(), lambda: next(answers))) == []


def test_followed_topic_that_is_deleted_ends_the_command(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(terminal, monkeypatch)
    watched.events = [lambda: monkeypatch.setattr(terminal.cluster, "topics", lambda _: {})]
    with pytest.raises(TopicError, match="topic 'plain' was deleted while it was read"):
        next(watched.follow())


def test_topic_that_is_about_to_be_created_is_waited_for_with_a_word(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    watched = Watched(terminal, monkeypatch)
    watched.events = [lambda: None, lambda: terminal.cluster.create_topics([("new", 3, -1, {})])]
    assert find_topic(watched.environment, "new", 10.0).partitions == 3
    assert [r.message for r in caplog.records] == [
        "topic 'new' does not exist yet; waiting up to 10 s for its creation"
    ]
    begun = terminal.clock()
    with pytest.raises(TopicError, match="topic 'never' does not exist: create it"):
        find_topic(watched.environment, "never", 10.0)
    with pytest.raises(TopicError, match=r"topic '\\udcff' does not exist: create it"):  # the client would die
        find_topic(watched.environment, "\udcff", 10.0)
    assert 10.0 <= terminal.clock() - begun < 11.0
