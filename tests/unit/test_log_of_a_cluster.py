"""Commands and replicas as bytes: what is written is read back, and everything else is refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from kstreams_py.errors import DecodeError
from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    CompleteTask,
    Entry,
    Found,
    JobId,
    KillJob,
    Leave,
    LeaveReason,
    PeerId,
    Scheduler,
    SealTask,
    SignalReady,
    SubmitJob,
    TaskSpec,
    Volunteer,
)
from kstreams_py.jobs.cluster.records import decode_entry, decode_replica, digest, encode_entry, encode_replica
from tests.unit.replicas import new_replicas

A, J = PeerId("a"), JobId("flights-1")
COMMANDS: list[Command] = [
    Found(1, "flights", Scheduler.PERCENTAGE, drops_last=True),
    AcceptJoin(A, "tcp://127.0.0.1:4000", "key", {"shop": "f1"}, "host 1"),
    SubmitJob(J, "shop", "f1", (TaskSpec("read", is_input=True, max_peers=4), TaskSpec("store", False, True)), 30.5),
    SubmitJob(J, "shop", "f1", ()),
    KillJob(J),
    CompleteTask(J, "read"),
    SealTask(J, "read", A, 3),
    Leave(A, LeaveReason.SILENT),
    Volunteer(A, 12),
    SignalReady(A, J, 3),
]


@pytest.mark.parametrize("body", COMMANDS, ids=lambda body: type(body).__name__)
def test_command_is_read_as_it_was_written(body: Command) -> None:
    assert decode_entry(encode_entry(Entry("a", 7, body))) == Entry("a", 7, body)


def test_command_is_readable_in_the_topic() -> None:
    assert json.loads(encode_entry(Entry("a", 7, COMMANDS[2]))) == {
        "command": "submit-job",
        "author": "a",
        "sequence": 7,
        "job": "flights-1",
        "graph": "shop",
        "fingerprint": "f1",
        "tasks": [
            {"id": "read", "is_input": True, "is_grouped": False, "max_peers": 4},
            {"id": "store", "is_input": False, "is_grouped": True, "max_peers": None},
        ],
        "percentage": 30.5,
    }


FOREIGN: list[bytes | None] = [
    None,
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"7",
    b'"kill-job"',
    b"[" * 100_000,
    b'{"command":"kill-job","author":"a","sequence":1}',
    b'{"command":"kill","author":"a","sequence":1,"job":"x"}',
    b'{"command":["kill-job"],"author":"a","sequence":1,"job":"x"}',
    b'{"command":"kill-job","author":"a","sequence":0,"job":"x"}',
    b'{"command":"kill-job","author":"a","sequence":true,"job":"x"}',
    b'{"command":"kill-job","author":null,"sequence":1,"job":"x"}',
    b'{"command":"kill-job","author":"a","sequence":1,"job":{"x":1}}',
    b'{"command":"volunteer","author":"a","sequence":1,"peer":"a","seen":1e400}',
    b'{"command":"submit-job","author":"a","sequence":1,"job":"x","graph":"g","fingerprint":"f","tasks":[7]}',
    b'{"command":"leave","author":"a","sequence":1,"peer":"a","reason":"bored"}',
]


@pytest.mark.parametrize("data", FOREIGN, ids=lambda data: (data or b"none")[:40].decode(errors="replace"))
def test_record_that_is_no_command_is_refused(data: bytes | None) -> None:
    with pytest.raises(DecodeError, match="not a command of a cluster"):
        decode_entry(data)


def test_changed_bytes_are_a_command_or_refused() -> None:
    chance, refused = random.Random(3), 0
    for _ in range(2_000):
        data = bytearray(encode_entry(Entry("a", 7, chance.choice(COMMANDS))))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            assert type(decode_entry(bytes(data))) is Entry
        except DecodeError:
            refused += 1
    assert 500 < refused < 2_000


def test_replica_is_read_as_it_was_written() -> None:
    cluster = new_replicas("round-robin", 7, "A2 B3 C1")
    cluster.do("kill C")
    cluster.leave("b")
    again = decode_replica(encode_replica(cluster.replica))
    assert (again, [*again.jobs], [*again.peers]) == (cluster.replica, ["A", "B", "C"], [*"acdefg"])
    assert digest(again) == digest(cluster.replica)


@pytest.mark.parametrize("data", [None, b"", b"{", b"[]", b'{"peers": 3}'])
def test_record_that_is_no_replica_is_refused(data: bytes | None) -> None:
    with pytest.raises(DecodeError, match="not a replica of a cluster"):
        decode_replica(data)


DIGEST = """
from kstreams_py.jobs.cluster.records import digest
from kstreams_py.jobs.cluster.slots import slot_of
from tests.unit.replicas import new_replicas, submit
cluster = new_replicas("round-robin", 9, "A2 B3")
cluster.append(submit("C2", grouped=[1]))
for event in ("leave A", "join", "leave C", "complete B 1", "kill A"):
    cluster.do(event)
print(digest(cluster.replica))
keys = [[n, f"{n}", b"%d" % n, n + 0.5, (n, "x", None)] for n in range(200)]
print(*(slot_of(key) for each in keys for key in each))
"""


def test_replica_and_slots_of_keys_do_not_depend_on_the_seed_of_hashes() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1
    digest_of, slots = found.pop().splitlines()
    assert (len(digest_of), len(slots.split())) == (16, 1_000)
    assert len({*slots.split()}) > 240  # of 256
