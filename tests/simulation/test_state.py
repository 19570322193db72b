"""Keyed state under chance: processes that die, freeze and return, requests that fail, markers that come late; seeded.

Two processors with a state each, in two or three slots, in memory or on disk. The second one refuses a number that does
not follow the one before it. At the end, outputs and states are those of the model. A failure prints its seed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import Abortable, BrokerUnavailable, Fatal, InputLost, OutcomeUnknown, Retriable
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.state.stores import Stores
from kstreams_py.testing import MemoryCluster, TestDriver

PARTITIONS: Final = 3

TURNS: Final = 60

KEYS: Final = [f"k{number}" for number in range(8)]

QUICK_SEEDS: Final = (4, 5, 6, 11, 15, 20, 27, 33, 1003, 1099)
"""Each mutation shows in three of these, at least; in the last two, a worker is frozen between its questions for
committed offsets and for beginnings."""

MORE_SEEDS: Final = sorted({*range(40)} - {*QUICK_SEEDS})

MUTATED_SEEDS: Final = range(40, 60)
"""Seeds of which one, at least, shows a mutation."""

FAULTS: Final[dict[str, tuple[type[Exception], ...]]] = {
    "produce": (Abortable, Retriable),
    "add_partition": (Abortable,),
    "add_offsets": (Abortable,),
    "send_offsets": (Abortable,),
    "commit_transaction": (Abortable, OutcomeUnknown),
    "read": (Retriable,),
    "ends": (Retriable, BrokerUnavailable),
    "starts": (Retriable,),
    "topics": (BrokerUnavailable,),
    "committed": (Retriable,),
}
"""Requests that fail, and how."""

ENDS: Final = (BrokerUnavailable, Fatal)
"""By these a process ends that begins without a broker, or whose producers fail in a row; it is started again later."""

FROZEN_AT: Final = {"topics", "starts", "ends", "read", "committed", "send_offsets"}
"""Requests before which a worker may be frozen."""


def declare(on_disk: bool) -> ks.Graph:
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=ks.String(), value=ks.String(), partitions=PARTITIONS)
    counts = graph.topic("g.counts", key=ks.String(), value=ks.Json(), partitions=PARTITIONS)
    totals = graph.topic("g.totals", key=ks.String(), value=ks.Json(), partitions=PARTITIONS)

    @graph.map(words, to=counts, state=ks.State("counts", on_disk=on_disk))
    def count(word: str, state: Any) -> int:
        seen: int = state.get(word, 0) + 1
        state.put(word, seen)
        return seen

    @graph.map(counts, to=totals, state=ks.State("totals", on_disk=on_disk))
    def total(number: int, step: ks.Step, state: Any) -> int:
        last, sum_ = state.get(step.key, [0, 0])
        if number != last + 1:
            raise ValueError([step.key, last, number])
        state.put(step.key, [number, sum_ + number])
        return int(sum_ + number)

    return graph


class Play:
    """One run, by its seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._chance = random.Random(seed)
        on_disk = self._chance.random() < 0.5
        self._slots = self._chance.choice((2, 3))
        settings = ks.Settings(state_directory=directory / str(seed), session_timeout_ms=10_000)
        self.driver = TestDriver(declare(on_disk), slots=self._slots, settings=settings)
        self.written = Counter[str]()
        self._held = set[TopicPartition]()
        self._freezes = 0
        """How often a worker is frozen in the middle of a restore, or of a commit."""
        self._turns: list[int] = []
        """The slots whose turns are run, each inside the one before it."""
        turn, on_request = self.driver._turn, self.driver._on_request

        def note_turn(slot: int) -> None:
            self._turns.append(slot)
            try:
                turn(slot)
            finally:
                self._turns.pop()

        def freeze(name: str, client: object) -> Any:
            if name in FROZEN_AT and self._freezes and len(self._turns) == 1 and self._chance.random() < 0.2:
                self._freezes -= 1
                self._let_others_run()
            return on_request(name, client)

        self.driver._turn = note_turn  # type: ignore[method-assign]
        self.driver.cluster.faults.watch(freeze)

    def _let_others_run(self) -> None:
        """Runs the other slots until the session of the one whose turn this is has ended, and a while after that."""
        others = [slot for slot in range(self._slots) if slot not in (self._turns[0], *self.driver.down)]
        for _ in range(self._chance.randrange(2, 20)):
            self.driver.advance(1)
            self._send(self._chance.randrange(3))
            for act in (self.driver._start, self.driver._join, self.driver._turn):
                for slot in others:
                    if slot not in self.driver.down:
                        with suppress(*ENDS):
                            self.driver._guarded(act, slot)

    def run(self) -> None:
        with self.driver:
            for _ in range(TURNS):
                self._act()
                self._turn()
            self._freezes = 0
            for tp in self._held:
                self.driver.cluster.faults.release_markers(tp)
            self.driver.restart()
            for _ in range(20):
                self.driver.advance(1)
                self._turn()
            self.driver.restart()
            self.driver.run()
            self.driver.cluster._network._faults.clear()  # of requests that nobody has made
            self._compare()

    def _turn(self) -> None:
        if len(self.driver.down) < self._slots:
            with suppress(*ENDS):
                self.driver.step()
        self.driver.advance(self._chance.choice((0.01, 0.05, 0.3, 1.5)))

    def _act(self) -> None:
        chance, driver = self._chance, self.driver
        slot = chance.randrange(self._slots)
        match chance.randrange(11):
            case 0:
                driver._kill(slot)
                driver._down.add(slot)
            case 1:  # frozen: its workers are there when it goes on, and may be no members any more
                driver._down.add(slot)
            case 2 | 3:
                driver._down.discard(slot)
            case 4 | 5:
                request = chance.choice(sorted(FAULTS))
                error = chance.choice(FAULTS[request])("injected")
                nth, applied = chance.randrange(1, 4), chance.random() < 0.5
                driver.cluster.faults.inject(request, nth=nth, error=error, applied=applied)
            case 6:
                state, faults = chance.choice(("counts", "totals")), driver.cluster.faults
                tp = TopicPartition(f"__ks.g.{state}.changelog", chance.randrange(PARTITIONS))
                (faults.release_markers if tp in self._held else faults.hold_markers)(tp)
                self._held ^= {tp}
            case 7:
                self._freezes += 1
            case _:
                self._send(chance.randrange(1, 12))

    def _send(self, count: int) -> None:
        for word in self._chance.choices(KEYS, k=count):
            self.driver.send("g.words", word, key=word)
            self.written[word] += 1

    def _outputs(self, topic: str) -> dict[str, list[int]]:
        found = defaultdict[str, list[int]](list)
        for record in self.driver.read(topic):
            found[record.key].append(record.value)
        return dict(found)

    def _compare(self) -> None:
        written = dict(sorted(self.written.items()))
        assert self._outputs("g.counts") == {word: list(range(1, n + 1)) for word, n in written.items()}
        sums = {word: [i * (i + 1) // 2 for i in range(1, n + 1)] for word, n in written.items()}
        assert self._outputs("g.totals") == sums
        assert self.driver.dead_letters() == []
        assert self.driver.state("counts") == written
        assert self.driver.state("totals") == {word: [n, n * (n + 1) // 2] for word, n in written.items()}


@pytest.mark.parametrize("seed", [*QUICK_SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE_SEEDS)])
def test_state_under_chance_is_that_of_the_model(seed: int, tmp_path: Path) -> None:
    Play(seed, tmp_path).run()


def restore_past_open_transactions(patch: pytest.MonkeyPatch) -> None:
    ends = MemoryCluster.ends
    patch.setattr(MemoryCluster, "ends", lambda self, partitions, **_: ends(self, partitions))
    patch.setattr(Stores, "_check", lambda *_: None)


def end_at_once(patch: pytest.MonkeyPatch) -> None:
    mistaken = Stores._mistaken

    def mistaken_at_once(self: Stores, number: int, group: Positions, why: str) -> Exception:
        self._doubts[number] = why
        return mistaken(self, number, group, why)

    patch.setattr(Stores, "_mistaken", mistaken_at_once)


def apply_at_once(patch: pytest.MonkeyPatch) -> None:
    records = Stores.records

    def apply(self: Stores, positions: Any) -> Any:
        written = records(self, positions)
        self.committed(positions)
        return written

    patch.setattr(Stores, "records", apply)


MUTATIONS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "changes are kept over an abort": lambda patch: patch.setattr(Stores, "roll_back", lambda _: None),
    "changes are in the store before their commit is known": apply_at_once,
    "a store is trusted after a commit without an answer": lambda patch: patch.setattr(
        Stores, "_differing", lambda *_: False
    ),
    "a worker that was frozen ends for a state that is ahead": end_at_once,
    "restored past an open transaction, and positions are not checked": restore_past_open_transactions,
}

SEEN_IN: Final = dict(zip(MUTATIONS, (0, 4, 2, 6, 6), strict=True))
"""A seed that shows each mutation."""


def run_all(seeds: range, directory: Path) -> None:
    for seed in seeds:
        Play(seed, directory).run()


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation_of_the_state_is_found(mutation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[mutation](monkeypatch)
    with pytest.raises((AssertionError, InputLost)):
        Play(SEEN_IN[mutation], tmp_path).run()


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation_of_the_state_is_found_in_other_seeds(
    mutation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTATIONS[mutation](monkeypatch)
    with pytest.raises((AssertionError, InputLost)):
        run_all(MUTATED_SEEDS, tmp_path)
