"""Keyed state on a real broker: processes, slots, topics and deployments that change, and a sink's rows."""

from __future__ import annotations

import pickle
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from kstreams_py import Settings
from kstreams_py.graph.sink import Evidence
from kstreams_py.state.changelog import CHANGELOG_SETTINGS
from tests.system.app import SHORT, SOON, grow
from tests.system.counting import Counting
from tests.system.harness import Cluster, WorkerProcess, await_joined, starting_workers, wait_until
from tests.system.recorder import Recorder
from tests.system.sqlite_target import STRIKES, SqliteTarget

each_kind = pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])


def quick(*, on_disk: bool) -> pytest.MarkDecorator:
    """A state of one kind; the other is long: tests/unit/test_state.py has all refusals of both in memory."""
    kinds = [pytest.param(each, marks=() if each is on_disk else pytest.mark.long) for each in (False, True)]
    return pytest.mark.parametrize("on_disk", kinds, ids=["in memory", "on disk"])


WRITTEN: Final = 300
"""Records that are written before each fault."""

INPUT_LOST: Final = 5


@pytest.fixture
def counting(name: str, tmp_path: Path, settings: Callable[..., Settings]) -> Iterator[Callable[[bool], Counting]]:
    """Makes the counting graph, with its state in memory or on disk; its workers are killed with the test."""
    made: list[Counting] = []

    def make(on_disk: bool) -> Counting:
        own = settings(state_directory=tmp_path / "state", kafka=SOON, **SHORT)
        made.append(Counting(tmp_path, name, own, on_disk=on_disk))
        return made[-1]

    yield make
    for each in made:
        each.kill_all()


def suffer(counting: Counting, turns: int, seed: int) -> None:
    """Kills, freezes and takes slots away while they count; then all goes on, and everything is compared."""
    chance, total = random.Random(seed), 0
    workers = {slot: counting.start(slot) for slot in range(3)}
    counting.await_joined(*workers.values())
    frozen: list[WorkerProcess] = []
    for turn in range(turns):
        counting.write(WRITTEN)
        counting.await_outputs(total + chance.randrange(WRITTEN))
        total += WRITTEN
        slot = chance.randrange(3)
        counting.await_joined(workers[slot])
        if turn % 3 == 0:
            workers[slot].kill()
        elif turn % 3 == 1:
            workers[slot].send(signal.SIGSTOP)
            frozen.append(workers[slot])
        else:  # it leaves for good: others take its tasks at once; then it is back, with what it has on disk
            leaving = workers.pop(slot)
            counting.stop(leaving)
            counting.release(slot)
            counting.write(WRITTEN)
            total += WRITTEN
            counting.await_outputs(total)
        workers[slot] = counting.start(slot)
    # of two old workers that find a slot free, each may take one of its two processors, and both end
    counting.await_joined(*workers.values())
    for worker in frozen:
        worker.send(signal.SIGCONT)
    counting.await_done()
    assert [worker.wait() for worker in frozen] == [4] * len(frozen)  # Replaced
    counting.await_joined(*workers.values())
    counting.stop(*workers.values())
    counting.verify()


def check_made_again(made: Counting) -> None:
    """Runs a worker until all is counted, and compares the state and its changelog with what was written."""
    worker = made.start(0)
    made.await_done()
    made.stop(worker)
    found = made.states()["counts"]
    assert (found, made.changelog_values("counts")) == (made.expected_states()["counts"], found)


@pytest.mark.long
@each_kind
def test_slots_that_are_killed_frozen_and_leave_count_each_record_once(
    counting: Callable[[bool], Counting], on_disk: bool
) -> None:
    suffer(counting(on_disk), turns=4, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@each_kind
@pytest.mark.parametrize("seed", range(2, 5))
def test_slots_under_faults_for_minutes_count_each_record_once(
    counting: Callable[[bool], Counting], on_disk: bool, seed: int
) -> None:
    suffer(counting(on_disk), turns=30, seed=seed)


# Topics and deployments that change.


def stop_after(counting: Counting, records: int) -> WorkerProcess:
    """Counts some records, and stops the worker."""
    worker = counting.start(0)
    counting.write(records)
    counting.await_outputs(records)
    counting.await_done()
    counting.stop(worker)
    return worker


def ended(worker: WorkerProcess) -> tuple[int, list[str]]:
    """The exit status of a worker, and the lines that say why."""
    status = worker.wait()
    return status, [line for line in worker.text.splitlines() if line.startswith("error: ")]


def create_again(counting: Counting, topic: str, **config: str) -> None:
    partitions = len(counting.cluster.partitions(topic))
    counting.cluster.delete(topic)
    counting.cluster.create(topic, partitions=partitions, config=config)


@pytest.mark.long
@each_kind
def test_changelog_created_again_under_a_live_worker_is_refused_until_a_reset(
    counting: Callable[[bool], Counting], on_disk: bool
) -> None:
    made = counting(on_disk)
    live = made.start(0)
    made.write(WRITTEN)
    made.await_outputs(WRITTEN)
    changelog = made.changelog("counts")
    create_again(made, changelog, **CHANGELOG_SETTINGS)
    made.write(WRITTEN)
    wait_until(lambda: len({m.partition() for m in made.cluster.read(changelog)}) == 4, "it writes on")
    assert live.process.poll() is None, live.text
    live.kill()
    status, (line,) = ended(made.start(0))
    assert (status, "was deleted and created again, and its contents are lost" in line) == (INPUT_LOST, True), line
    # what the message asks for
    made.cluster.delete(changelog)
    made.reset("--to-beginning")
    check_made_again(made)


@quick(on_disk=True)
def test_changelog_deleted_while_workers_are_stopped_is_refused_until_a_reset(
    counting: Callable[[bool], Counting], on_disk: bool
) -> None:
    made = counting(on_disk)
    stop_after(made, WRITTEN)
    changelog = made.changelog("counts")
    made.cluster.delete(changelog)
    status, (line,) = ended(made.start(0))
    found = status, f"its changelog {changelog}[" in line, "contents are lost: " in line
    assert found == (INPUT_LOST, True, True), line
    made.reset("--to-beginning")
    check_made_again(made)


@pytest.mark.long
def test_input_that_has_grown_ends_the_worker_and_leaves_the_state(counting: Callable[[bool], Counting]) -> None:
    made = counting(True)
    worker = made.start(0)
    made.write(WRITTEN)
    made.await_outputs(WRITTEN)
    made.await_done()
    grow(made.cluster, 6, made.topic("in"))
    for status, lines in (ended(worker), ended(made.start(0))):
        assert (status, len(lines)) == (2, 1), lines
        assert "its inputs have 6 partitions, but its changelog" in lines[0]
    made.verify()


@pytest.mark.long
@each_kind
def test_input_created_again_is_refused_and_the_state_can_begin_empty(
    counting: Callable[[bool], Counting], on_disk: bool
) -> None:
    made = counting(on_disk)
    stop_after(made, WRITTEN)
    create_again(made, made.topic("in"))
    made.written.clear()
    made.write(WRITTEN)
    status, (line,) = ended(made.start(0))
    assert (status, f"topic {made.topic('in')!r} was deleted and created again" in line) == (INPUT_LOST, True), line
    made.cluster.delete(made.changelog("counts"))
    check_made_again(made)


@pytest.mark.long
@each_kind
def test_deployment_without_the_state_is_noticed_and_the_group_can_be_set_back(
    counting: Callable[[bool], Counting], on_disk: bool
) -> None:
    made = counting(on_disk)
    stop_after(made, WRITTEN)
    source = made.topic("in")
    before = made.cluster.committed(f"{made.name}.count", source)
    made.deploy(with_state=False)
    worker = made.start(0)
    made.write(WRITTEN)
    made.recorder.await_done(f"{made.name}.count", source)
    made.stop(worker)
    made.deploy()
    status, (line,) = ended(made.start(0))
    assert (status, "does not belong to the committed offsets: it is at " in line) == (INPUT_LOST, True), line
    places = [word for p, at in before.items() for word in ("--to-offset", f"{source}:{p}:{at}")]
    made.reset(*places)
    worker = made.start(0)
    made.await_done()
    made.stop(worker)
    made.verify()


# Aborts, and mutations of the product.

ABORTS: Final = """
import itertools
from kstreams_py.errors import Abortable
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.state.stores import Stores

commit, numbers = KafkaProducer.commit_transaction, itertools.count()


def commit_or_abort(producer):
    if next(numbers) % 3 == 1:
        raise Abortable("the test aborts this one")
    commit(producer)


KafkaProducer.commit_transaction = commit_or_abort
"""
"""One transaction in three is aborted for real, with outputs, changes and offsets already in it."""

MUTATIONS: Final = {
    "changes are kept over an abort": "Stores.roll_back = lambda stores: None",
    "changes are in the store before their commit is known": """
records = Stores.records

def apply_at_once(stores, positions):
    written = records(stores, positions)
    stores.committed(positions)
    return written

Stores.records = apply_at_once
""",
}


def count_with_aborts(made: Counting, mutation: str) -> tuple[int | None, str]:
    """Counts while commits are aborted; returns the exit status of a worker that ended by itself, and its log."""
    made.deploy(prelude=ABORTS + mutation)
    worker = made.start(0)
    for turn in range(1, 5):
        made.write(WRITTEN)
        least = sum(made.written.values()) - WRITTEN // 2
        wait_until(
            lambda least=least: len(made.cluster.read(made.topic("out"))) >= least or worker.process.poll() is not None,  # type: ignore[misc]
            f"outputs of turn {turn}",
        )
    if worker.process.poll() is not None:
        return worker.wait(), worker.text
    made.await_done()
    worker.send(signal.SIGTERM)
    worker.wait()
    return None, worker.text


@quick(on_disk=True)
def test_transactions_that_are_aborted_count_each_record_once(
    counting: Callable[[bool], Counting], on_disk: bool
) -> None:
    made = counting(on_disk)
    status, text = count_with_aborts(made, "")
    assert status is None, text
    assert "the test aborts this one" in text
    made.verify()


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation_of_the_state_is_found_under_aborts(counting: Callable[[bool], Counting], mutation: str) -> None:
    made = counting(False)
    status, text = count_with_aborts(made, MUTATIONS[mutation])
    if status is None:
        with pytest.raises(AssertionError):
            made.verify()
    else:
        assert status == INPUT_LOST, text


# Rows.

STORING = """
import pickle
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
words = graph.topic("{name}.in", key=ks.String(), value=ks.String())


@graph.sink(words, to=pickle.loads({target!r}), state=ks.State("counts", on_disk={on_disk}))
def store(word, state):
    seen = state.get(word, 0) + 1
    state.put(word, seen)
    if word == "bad":
        raise ValueError(word)
    return [(word, seen)]
"""


@pytest.mark.long  # in the quick tier, the simulation of states, and test_targets.py
@pytest.mark.parametrize(
    ("on_disk", "rounds"),
    [(False, 1), *(pytest.param(each, 2, marks=pytest.mark.long) for each in (False, True))],
    ids=["in memory", "in memory, twice", "on disk, twice"],
)
def test_rows_of_a_sink_with_state_are_stored_once_whenever_a_worker_is_killed(
    cluster: Cluster, settings: Callable[..., Settings], name: str, tmp_path: Path, on_disk: bool, rounds: int
) -> None:
    """Rows are stored before the state is committed: a step that is run again has the same state, and the same rows."""
    target, chance, written = SqliteTarget(str(tmp_path), Evidence.HASH), random.Random(4), Counter[str]()
    file = tmp_path / "storing.py"
    file.write_text(STORING.format(name=name, target=pickle.dumps(target), on_disk=on_disk), encoding="utf-8")
    environment = settings(state_directory=tmp_path / "state", **SHORT).as_environment()

    cluster.create(f"{name}.in", partitions=4)
    cluster.create(f"{name}.errors")
    with starting_workers() as start:
        workers = [start(file, slot, environment, "--create-topics") for slot in (0, 1)]
        frozen, strikes = list[WorkerProcess](), [*[*STRIKES] * rounds, None]
        await_joined("store", *workers)
        for place in strikes:
            struck = None if place is None else tmp_path / place
            if struck is not None:
                struck.touch()
            words = chance.choices(["bad", *(f"k{number}" for number in range(20))], k=WRITTEN)
            written.update(words)
            values = [word.encode() for word in words]
            cluster.write(f"{name}.in", values, keys=values)
            if struck is None:
                slot = chance.randrange(2)
                workers[slot].kill()
            else:
                wait_until(lambda struck=struck: not struck.exists(), "a worker is struck")  # type: ignore[misc]
                wait_until(lambda: any(map(is_down, workers)), "it is down")
                slot = next(slot for slot, each in enumerate(workers) if is_down(each))
                frozen += [workers[slot]] if STRIKES[str(place)] is signal.SIGSTOP else []
            workers[slot] = start(file, slot, environment, "--create-topics")
            await_joined("store", workers[slot])
        for each in frozen:
            each.send(signal.SIGCONT)
        Recorder(cluster.bootstrap_servers).await_done(f"{name}.store", f"{name}.in")
        assert [each.wait() for each in frozen] == [4] * len(frozen)  # Replaced
        for each in workers:
            each.send(signal.SIGTERM)
        assert [each.wait() for each in workers] == [0, 0]
    bad = written.pop("bad")
    assert Counter(target.read()) == Counter((word, n + 1) for word, count in written.items() for n in range(count))
    assert len(cluster.read(f"{name}.errors")) == bad
    changelog = {m.key(): m.value() for m in cluster.read(f"__ks.{name}.counts.changelog")}
    state = {key.decode(): int(value) for key, value in changelog.items() if not key.startswith(b"\0")}
    assert state == dict(written)


def is_down(worker: WorkerProcess) -> bool:
    """Whether a process has ended, or is stopped."""
    if worker.process.poll() is not None:
        return True
    with suppress(FileNotFoundError):  # it ends at this moment
        return Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return True
