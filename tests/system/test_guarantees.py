"""The three guarantees under SIGKILL, replacement and rebalance: worker processes on a real broker."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.system.app import MakeApp, MakeSettings, app_factory
from tests.system.harness import Cluster, wait_until


@pytest.fixture
def new_app(tmp_path: Path, name: str, settings: MakeSettings) -> Iterator[MakeApp]:
    with app_factory(tmp_path, name, settings) as make:
        yield make


def test_exactly_once_sigkill_in_mid_transaction_delivers_once(new_app: MakeApp, cluster: Cluster) -> None:
    # the commit interval is longer than the wait: outputs written before the gate stay in one open transaction
    copier = new_app(commit_interval_ms=5_000)
    values = [str(i).encode() for i in range(1_200)]  # more than a transaction holds back
    cluster.write(copier.source, [*values, b"wait", b"last"])
    first = copier.start()
    wait_until(lambda: len(cluster.read(copier.target, "read_uncommitted")) >= 100, "outputs are written")
    copier.await_waiting()
    assert cluster.values(copier.target) == []
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    copier.gate.touch()
    second = copier.start()
    cluster.await_committed(copier.group, copier.source, {0: 1_202})
    second.send(signal.SIGTERM)
    assert second.wait() == 0, second.text
    assert cluster.values(copier.target) == [*values, b"wait", b"last"]
    assert len(cluster.read(copier.target, "read_uncommitted")) > 1_202, "the killed worker's outputs were there"


def test_at_least_once_sigkill_before_positions_are_saved_repeats_and_loses_nothing(
    new_app: MakeApp, cluster: Cluster
) -> None:
    copier = new_app(options="guarantee='at_least_once'", commit_interval_ms=5_000)
    values = [str(i).encode() for i in range(150)]
    cluster.write(copier.source, [*values, b"wait", b"last"])
    first = copier.start()
    wait_until(lambda: len(cluster.read(copier.target)) >= 100, "outputs are written")
    copier.await_waiting()
    first.send(signal.SIGKILL)
    first.wait()
    written = Counter(cluster.values(copier.target))
    copier.gate.touch()
    copier.start()
    cluster.await_committed(copier.group, copier.source, {0: 152})
    assert Counter(cluster.values(copier.target)) == Counter([*values, b"wait", b"last"]) + written


def test_at_most_once_sigkill_while_functions_run_loses_and_repeats_none(new_app: MakeApp, cluster: Cluster) -> None:
    copier = new_app(options="guarantee='at_most_once'")
    cluster.write(copier.source, [b"first", b"wait", b"lost"])
    first = copier.start()
    copier.await_waiting()
    assert cluster.committed(copier.group, copier.source) == {0: 3}, "offsets are committed before the functions run"
    first.send(signal.SIGKILL)
    first.wait()
    copier.gate.touch()
    cluster.write(copier.source, [b"later"])
    copier.start()
    wait_until(lambda: b"later" in cluster.values(copier.target), "the next record")
    assert cluster.values(copier.target) == [b"later"]


@pytest.mark.long
def test_exactly_once_replacement_in_the_slot_fences_the_frozen_worker(new_app: MakeApp, cluster: Cluster) -> None:
    copier = new_app(commit_interval_ms=4_000)
    cluster.write(copier.source, [str(i).encode() for i in range(120)] + [b"wait"])
    frozen = copier.start()
    wait_until(copier.waiting.exists, "the function waits in an open transaction")
    frozen.send(signal.SIGSTOP)
    copier.gate.touch()
    replacement = copier.start()
    cluster.await_committed(copier.group, copier.source, {0: 121})
    frozen.send(signal.SIGCONT)
    assert frozen.wait() == 4, frozen.text  # Replaced
    assert "another worker has taken the slot" in frozen.text
    cluster.write(copier.source, [b"after"])
    cluster.await_committed(copier.group, copier.source, {0: 122})
    replacement.send(signal.SIGTERM)
    assert replacement.wait() == 0, replacement.text
    assert cluster.values(copier.target) == [*(str(i).encode() for i in range(120)), b"wait", b"after"]


@pytest.mark.long
def test_exactly_once_rebalance_under_load_delivers_once_and_in_order_per_key(
    new_app: MakeApp, cluster: Cluster
) -> None:
    copier = new_app(partitions=4, session_timeout_ms=6_000, transaction_timeout_ms=5_000)
    keys = [str(i % 16).encode() for i in range(20_000)]
    values = [f"{key.decode()}:{i}".encode() for i, key in enumerate(keys)]
    cluster.write(copier.source, values[:8_000], keys=keys[:8_000])
    first = copier.start(0)
    wait_until(lambda: cluster.values(copier.target), "the first worker writes outputs")
    second = copier.start(1)
    cluster.write(copier.source, values[8_000:14_000], keys=keys[8_000:14_000])
    wait_until(lambda: "copy: holds" in second.text, "the second worker holds partitions")
    cluster.write(copier.source, values[14_000:], keys=keys[14_000:])
    second.send(signal.SIGTERM)
    assert second.wait() == 0, second.text
    # the second worker's membership lasts until its session expires; then the first gets its partitions
    wait_until(lambda: len(cluster.read(copier.target)) >= len(values), "all records")
    first.send(signal.SIGTERM)
    assert first.wait() == 0, first.text
    found = cluster.values(copier.target)
    assert Counter(found) == Counter(values)

    def select_key(key: bytes, records: Iterable[bytes | None]) -> list[bytes]:
        return [value for value in records if value is not None and value.split(b":")[0] == key]

    source = cluster.values(copier.source)
    written, copied = ({key: select_key(key, each) for key in set(keys)} for each in (source, found))
    assert [key for key in written if written[key] != select_key(key, values)] == [], "the test wrote in another order"
    assert [key for key in written if written[key] != copied[key]] == [], (
        "the outputs are not in the order of the source"
    )
