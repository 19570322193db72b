"""`kstreams send` and `kstreams tail` on a real broker: lines in and out, what a topic refuses, following."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as ck

from kstreams_py import Settings
from tests.system.command import Finished, clean_environment, command, kstreams
from tests.system.harness import Cluster, wait_until
from tests.system.launcher import Launched
from tests.waiting import WAIT, accept_interrupts

MakeSettings = Callable[..., Settings]

NUMBERS = 2_000


def send(environment: dict[str, str], topic: str, lines: str) -> Finished:
    return kstreams("send", topic, environment=environment, typed=lines)


def head(environment: dict[str, str], topic: str, *options: str) -> tuple[str, str]:
    """The first line of `kstreams tail`, in a pipe that ends after it, and what comes to stderr."""
    ours, theirs = os.pipe()
    with tempfile.TemporaryFile("w+") as err:
        words = ("tail", topic, *options)
        process = Launched(words, clean_environment(environment), stdout=theirs, stderr=err.fileno())
        os.close(theirs)
        with os.fdopen(ours, encoding="utf-8") as out:
            line = out.readline()
        process.wait(WAIT)
        err.seek(0)
        return line, err.read()


def test_lines_that_are_sent_are_printed_in_the_order_of_their_partition(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    environment = settings().as_environment()
    cluster.create(name, partitions=3)
    lines = "".join(f'{{"key": "{n % 7}", "value": {n}}}\n' for n in range(NUMBERS))
    sent = send(environment, name, lines)
    assert (sent.status, sent.out, sent.err) == (0, "", f"{NUMBERS:,} sent to {name}\n")
    everything = kstreams("tail", name, "--from", "beginning", environment=environment)
    records = [json.loads(line) for line in everything.out.splitlines()]
    assert sorted(int(each["value"]) for each in records) == list(range(NUMBERS))
    for key in "0123456":
        mine = [int(each["value"]) for each in records if each["key"] == key]
        assert mine == list(range(int(key), NUMBERS, 7))
    newest = kstreams("tail", name, "-n", 1, "--partition", records[-1]["partition"], environment=environment)
    assert json.loads(newest.out) == records[-1]
    piped = head(environment, name, "--from", "beginning")
    assert piped == (everything.out.splitlines(keepends=True)[0], "")


def test_line_that_the_broker_refuses_is_named_with_those_of_its_batch(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    environment = settings().as_environment()
    cluster.create(name, config={"cleanup.policy": "compact"})
    refused = send(environment, name, '{"key": "a", "value": 1}\n{"value": 2}\n')
    assert (refused.status, refused.out) == (2, "")
    assert f"topic {name!r} refuses" in refused.err
    kept = [json.loads(value or b"") for value in cluster.values(name)]
    not_sent, count = ("1, 2", 0) if not kept else ("2", 1)  # whether the two lines were in one batch
    assert kept == [1][:count]
    assert refused.err.rstrip().endswith(f": not sent: line {not_sent} ({count} sent)")


def test_followed_topic_prints_records_as_they_are_sent_until_ctrl_c(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path
) -> None:
    accept_interrupts()
    environment = settings().as_environment()
    cluster.create(name)
    send(environment, name, '{"value": "first"}\n')
    with command(tmp_path, "tail", name, "--follow", environment=environment) as tail:
        tail.await_text('"value": "first"')
        for value in ("second", "third"):
            assert kstreams("send", name, "--value", value, environment=environment).status == 0
            tail.await_text(f'"value": "{value}"')
        tail.send(signal.SIGINT)
        assert tail.wait() == 130
    assert [json.loads(line)["offset"] for line in tail.text.splitlines()[:-1]] == [0, 1, 2]
    assert tail.text.splitlines()[-1] == "interrupted"


def test_records_of_a_transaction_that_is_stuck_are_printed_with_what_became_of_them(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    environment = settings().as_environment()
    cluster.create(name)
    cluster.transaction(name, [(name, b"aborted")], commit=False)
    cluster.transaction(name, [(name, b"committed")])
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce(name, "stuck")
    producer.flush(WAIT)
    assert kstreams("send", name, "--value", "behind", environment=environment).status == 0

    def shown(*options: str) -> list[tuple[str, str | None]]:
        done = kstreams("tail", name, *options, environment=environment)
        assert (done.status, done.err) == (0, "")
        return [(each["value"], each.get("fate")) for each in map(json.loads, done.out.splitlines())]

    assert shown() == [("committed", None)]
    everything = [("aborted", "aborted"), ("committed", None), ("stuck", "pending"), ("behind", "pending")]
    assert shown("--uncommitted") == shown("--uncommitted", "--from", "beginning") == everything
    producer.abort_transaction(WAIT)
    wait_until(lambda: cluster.values(name) == [b"committed", b"behind"], "the end of the transaction")
    assert shown("--uncommitted", "-n", "2") == [("stuck", "aborted"), ("behind", None)]


def test_followed_topic_ends_with_its_reader_though_no_record_comes(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    environment = settings().as_environment()
    cluster.create(name)
    send(environment, name, '{"value": "first"}\n')
    line, err = head(environment, name, "--follow")
    assert (json.loads(line)["value"], err) == ("first", "")
