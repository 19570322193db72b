"""A graph of two processors with a state each, its workers, and all that they leave, compared with the model.

The first counts words; the second adds the counts up, and refuses one that does not follow the one before it: a value
that is old, or doubled, or lost, is seen in an output, in a state, or in a dead letter.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kstreams_py import Settings
from tests.system.command import Finished, kstreams
from tests.system.harness import NONE, Cluster, Config, WorkerProcess, wait_until
from tests.system.recorder import Record, Recorder

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
words = graph.topic("{name}.in", key=ks.String(), value=ks.String())
counts = graph.topic("{name}.out", key=ks.String(), value=ks.Json())
totals = graph.topic("{name}.totals", key=ks.String(), value=ks.Json())


@graph.map(words, to=counts{count_state})
def count(word{count_argument}):
    {count}


{prelude}


@graph.map(counts, to=totals, state=ks.State("totals", on_disk={on_disk}))
def total(number, step, state):
    last, total = state.get(step.key, [0, 0])
    if number != last + 1:
        raise ValueError([step.key, last, number])
    state.put(step.key, [number, total + number])
    return total + number
"""

WITH_STATE: Final = {
    "count_argument": ", state",
    "count": "seen = state.get(word, 0) + 1; state.put(word, seen); return seen",
}

WITHOUT_STATE: Final = {"count_state": "", "count_argument": "", "count": "return None"}

KEYS: Final = [f"k{number}" for number in range(40)]

STATES: Final = {"counts": "count", "totals": "total"}


class Counting:
    """The graph's file, its topics and its processes."""

    def __init__(
        self,
        directory: Path,
        name: str,
        settings: Settings,
        *,
        on_disk: bool,
        partitions: int = 4,
        replication: int = 1,
        config: Config = NONE,
    ) -> None:
        self.name, self.on_disk = name, on_disk
        self.recorder = Recorder(settings.bootstrap_servers)
        self.cluster: Cluster = self.recorder.cluster
        self.file, self.environment = directory / "counting.py", settings.as_environment()
        self.started: list[WorkerProcess] = []
        self.written = Counter[str]()
        self._chance = random.Random(17)
        topics = [f"{name}.{short}" for short in ("in", "out", "totals")]
        self.cluster.create(*topics, partitions=partitions, replication=replication, config=config)
        self.cluster.create(f"{name}.errors", replication=replication, config=config)
        self.deploy()

    def deploy(self, *, with_state: bool = True, prelude: str = "") -> None:
        """Writes the file of the graph; without the state, `count` returns nothing. `prelude` changes the product."""
        state = f', state=ks.State("counts", on_disk={self.on_disk})'
        parts = {"count_state": state, **WITH_STATE} if with_state else WITHOUT_STATE
        text = GRAPH.format(name=self.name, on_disk=self.on_disk, prelude=prelude, **parts)
        self.file.write_text(text, encoding="utf-8")

    def topic(self, short: str) -> str:
        return f"{self.name}.{short}"

    def changelog(self, state: str) -> str:
        return f"__ks.{self.name}.{state}.changelog"

    def start(self, slot: int, **environment: str) -> WorkerProcess:
        self.started.append(WorkerProcess(self.file, slot, {**self.environment, **environment}, "--create-topics"))
        return self.started[-1]

    def kill_all(self) -> None:
        for worker in self.started:
            worker.kill()

    def command(self, *arguments: object) -> Finished:
        return kstreams(*arguments, environment=self.environment)

    def release(self, *slots: int) -> None:
        """Removes slots, whose processes have ended, from the groups."""
        released = self.command("slots", "release", f"{self.file}:graph", *slots)
        # or its session has ended by then
        assert released.status == 0, released

    def reset(self, *options: str) -> None:
        """Moves the group of `count`, which slot 0 has left, with `kstreams recover reset`."""
        self.release(0)
        reset = self.command("recover", "reset", f"{self.file}:graph", "count", *options, "--yes")
        assert reset.status == 0, reset

    # Records.

    def record(self, number: int) -> Record:
        """The next record, for Recorder.feeding."""
        word = KEYS[number * 7 % len(KEYS)]
        self.written[word] += 1
        return self.topic("in"), word.encode(), word.encode(), -1

    def write(self, count: int) -> None:
        words = self._chance.choices(KEYS, k=count)
        self.written.update(words)
        values = [word.encode() for word in words]
        self.cluster.write(self.topic("in"), values, keys=values)

    # Waits.

    def count_totals(self) -> int:
        return len(self.cluster.read(self.topic("totals")))

    def await_outputs(self, count: int) -> None:
        wait_until(lambda: self.count_totals() >= count, f"{count} totals")

    def await_joined(self, *workers: WorkerProcess) -> None:
        """Waits until workers have assignments: one that is frozen before it joins would take the slot back later."""
        wait_until(lambda: all(self.has_joined(worker) for worker in workers), "the workers have joined")

    def has_joined(self, worker: WorkerProcess) -> bool:
        return all(each in worker.text for each in ("count: holds", "total: holds"))

    def await_done(self) -> None:
        self.recorder.await_done(f"{self.name}.count", self.topic("in"))
        self.recorder.await_done(f"{self.name}.total", self.topic("out"))

    def stop(self, *workers: WorkerProcess) -> None:
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0] * len(workers), [worker.text for worker in workers]

    # What is there.

    def outputs(self, short: str) -> dict[str, list[Any]]:
        """The values of each key, in their order."""
        found = defaultdict[str, list[Any]](list)
        for m in self.cluster.read(self.topic(short)):
            found[m.key().decode()].append(json.loads(m.value()))
        return dict(found)

    def changelog_values(self, state: str) -> dict[str, Any]:
        """The newest value of each key in a changelog, read with a plain consumer."""
        found = {m.key(): m.value() for m in self.cluster.read(self.changelog(state))}
        return {key.decode(): json.loads(value) for key, value in sorted(found.items()) if not key.startswith(b"\0")}

    def states(self) -> dict[str, dict[str, Any]]:
        """The states as `kstreams state show` prints them."""
        found = {}
        for state in STATES:
            shown = self.command("state", "show", f"{self.file}:graph", state)
            assert shown.status == 0, shown.err
            entries = [json.loads(line) for line in shown.out.splitlines()]
            found[state] = {entry["key"]: entry["value"] for entry in entries}
        return found

    def expected_states(self) -> dict[str, dict[str, Any]]:
        counts = {word: count for word, count in sorted(self.written.items()) if count}
        return {"counts": counts, "totals": {word: [n, n * (n + 1) // 2] for word, n in counts.items()}}

    def assert_states(self, expected: Mapping[str, Mapping[str, Any]]) -> None:
        assert self.states() == expected
        assert {state: self.changelog_values(state) for state in STATES} == expected

    def verify(self) -> None:
        """Each record has one output of each processor, in order; each state, and its changelog, is the model's."""
        self.recorder.await_no_open_transaction(*(self.changelog(state) for state in STATES))
        counts = {word: count for word, count in self.written.items() if count}
        assert self.outputs("out") == {word: list(range(1, n + 1)) for word, n in counts.items()}
        sums = {word: [i * (i + 1) // 2 for i in range(1, n + 1)] for word, n in counts.items()}
        assert self.outputs("totals") == sums
        assert self.cluster.values(self.topic("errors")) == []
        self.assert_states(self.expected_states())
