"""Records of other programs on a real broker: none ends a worker or stops its partition.

Through each kind of processor, in memory: tests/hostile/records.py.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.cli.options import open_environment
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.graph.hashes import pack_offset
from kstreams_py.operations.dead_letters.replay import replay
from kstreams_py.processing.dead_letters.letters import LetterSelection
from tests.raw_records import Raw, write_raw
from tests.system.app import GUARANTEES, MakeSettings, decode_dead_letter
from tests.system.command import kstreams
from tests.system.harness import Cluster, running

DAY_MS: Final = 86_400_000
ANY_TIME: Final = {"message.timestamp.after.max.ms": str(1 << 62)}

BAD_NAME: Final = Raw(b"of a bad header", b"k", [(b"a", b"1"), (b"\xff\xfe", b"2")])

each_guarantee = pytest.mark.parametrize(
    "guarantee", [GUARANTEES[0], *(pytest.param(each, marks=pytest.mark.long) for each in GUARANTEES[1:])]
)
"""What reads and what makes dead letters is one code for all guarantees; who writes them is not, and is tried below."""


def copying(name: str, guarantee: str) -> ks.Graph:
    graph = ks.Graph(name, guarantee=guarantee, errors=f"{name}.errors")
    graph.map(graph.topic(f"{name}.in"), to=graph.topic(f"{name}.out"), id="p")(lambda value: value)
    return graph


def describe_letters(cluster: Cluster, topic: str) -> list[tuple[int, str, str | None]]:
    """Of each dead letter the offset that was read, the class of the exception, and what is cut."""
    found = [decode_dead_letter(m) for m in cluster.read(topic)]
    return [(each["inputs"][0]["offset"], each["exception_class"].rpartition(".")[2], each["cut"]) for each in found]


@each_guarantee
def test_records_that_cannot_be_read_are_dead_letters_and_all_others_are_delivered(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    source, errors = f"{name}.in", f"{name}.errors"
    cluster.create(source, f"{name}.out", errors)
    zeros: dict[str, Any] = {"message_max_bytes": "200000000"}
    address = cluster.bootstrap_servers
    write_raw(address, source, [Raw(b"0"), BAD_NAME])
    write_raw(address, source, [Raw(bytes(105 << 20))], compression_type="zstd", **zeros)
    write_raw(address, source, [Raw(b"3")])
    write_raw(address, source, [Raw(bytes(2_000_001))], compression_type="gzip", **zeros)
    named = [(b"", b"1"), (b"n" * 32_768, b"2"), (b"a\0b", b"3")]  # the client reads a name up to a zero character
    write_raw(address, source, [Raw(b"5", None, named)])
    with running(copying(name, guarantee), settings(value_bytes_max=2_000_000)):
        cluster.await_committed(f"{name}.p", source, {0: 6})
    assert cluster.values(f"{name}.out") == [b"0", b"3", b"5"]
    assert cluster.read(f"{name}.out")[-1].headers()[:3] == [("", b"1"), ("n" * 32_768, b"2"), ("a", b"3")]
    at = f"{source}[0]"
    assert describe_letters(cluster, errors) == [
        (1, "DecodeError", f"headers of {at}@1: a name is not UTF-8, none is kept"),
        (2, "DecodeError", "; ".join(f"{part} of {at}@2: none is kept" for part in ("key", "value", "headers"))),
        (4, "DecodeError", f"value of {at}@4: 1,000 of 2,000,001 bytes kept; headers of {at}@4: none is kept"),
    ]


@each_guarantee
def test_replay_sends_no_forged_letter_and_no_record_that_cannot_be_read(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    source, errors, is_mended = f"{name}.in", f"{name}.errors", False

    def copy(value: bytes) -> bytes:
        if not is_mended and value == b"0":
            raise LookupError(value)
        return value

    graph = ks.Graph(name, guarantee=guarantee, errors=errors)
    graph.map(graph.topic(source), to=graph.topic(f"{name}.out"), id="p")(copy)
    cluster.create(source, f"{name}.out", errors)
    write_raw(cluster.bootstrap_servers, source, [Raw(b"0", b"k", [(b"a", b"1")]), BAD_NAME])
    zeros: dict[str, Any] = {"message_max_bytes": "200000000"}
    write_raw(cluster.bootstrap_servers, source, [Raw(bytes(105 << 20))], compression_type="zstd", **zeros)
    write_raw(cluster.bootstrap_servers, source, [Raw(b"3", timestamp=5)])
    with running(graph, settings()):
        cluster.await_committed(f"{name}.p", source, {0: 4})
    is_mended = True
    with open_environment(settings()) as environment:
        forge = bind(dead_letters(), environment.registry, f"{errors}-value").serialize
        content = decode_dead_letter(cluster.read(errors)[0])
        content["inputs"][0] |= {"offset": 3, "key": None, "value": b"1000000", "headers": [], "timestamp": 5}
        content["delivery_hash"] = content["delivery_hash"][:8] + pack_offset(3)
        write_raw(cluster.bootstrap_servers, errors, [Raw(forge({**content, "traceback": ""}))])
        told = list[tuple[int, str, str]]()
        replay(
            graph,
            environment,
            LetterSelection(),
            lambda letter, what, why: told.append((letter.place.offset, what, why)),
        )
    cluster.await_markers(f"{name}.out")
    assert cluster.values(f"{name}.out") == [b"3", b"0"]
    letters = [m.offset() for m in cluster.read(errors)]
    told.sort()
    assert [(offset, what) for offset, what, _ in told] == [
        (letters[0], "replayed"),
        (letters[1], "failed again"),
        (letters[2], "failed again"),
        (letters[3], "cannot be replayed"),
    ]
    assert (
        told[-1][2]
        == f"it differs from {source}[0]@3 in its value, so no worker wrote it: see who may write to {errors}"
    )


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("is_known", [True, pytest.param(False, marks=pytest.mark.long)], ids=["known", "changed"])
def test_dead_letter_is_fitted_to_what_its_topic_takes(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str, is_known: bool
) -> None:
    """A record from the day after tomorrow, which neither the output's topic takes nor that of the dead letters.

    What this takes is known at the start, or changes while the worker runs.
    """
    source, errors, tomorrow = f"{name}.in", f"{name}.errors", int(time.time() * 1000) + 2 * DAY_MS
    strict = {"cleanup.policy": "compact", "message.timestamp.after.max.ms": str(DAY_MS)}
    cluster.create(source, config=ANY_TIME)
    cluster.create(f"{name}.out")
    cluster.create(errors, config=strict if is_known else ANY_TIME)
    write_raw(cluster.bootstrap_servers, source, [Raw(b"0")])
    with running(copying(name, guarantee), settings()):
        cluster.await_committed(f"{name}.p", source, {0: 1})
        if not is_known:
            cluster.configure(errors, strict)
        write_raw(cluster.bootstrap_servers, source, [Raw(b"1", timestamp=tomorrow), Raw(b"2")])
        cluster.await_committed(f"{name}.p", source, {0: 3})
    assert cluster.values(f"{name}.out") == [b"0", b"2"]
    (letter,) = cluster.read(errors)
    content = decode_dead_letter(letter)
    assert (letter.key(), abs(letter.timestamp()[1] + 2 * DAY_MS - tomorrow) < DAY_MS) == (
        content["delivery_hash"],
        True,
    )
    assert [(read["value"], read["timestamp"]) for read in content["inputs"]] == [(b"1" if is_known else b"", tomorrow)]
    changed = content["cut"].split("; ")[:2]
    assert changed == [
        f"own timestamp: that of its writing, as {tomorrow} cannot be written",
        "own key: the delivery hash, because the topic is compacted",
    ]


def test_tail_shows_records_that_cannot_be_read(cluster: Cluster, name: str) -> None:
    cluster.create(name)
    write_raw(cluster.bootstrap_servers, name, [BAD_NAME, Raw(b"next")])
    zeros: dict[str, Any] = {"message_max_bytes": "200000000"}
    write_raw(cluster.bootstrap_servers, name, [Raw(bytes(105 << 20))], compression_type="zstd", **zeros)
    environment = {"KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    shown = kstreams("tail", name, "--from", "beginning", environment=environment)
    assert [("of a bad header" in line, "UTF-8" in line) for line in shown.out.splitlines()] == [
        (True, True),
        (False, False),
        (False, False),
    ]
    assert "cannot be decompressed" in shown.out.splitlines()[2]
