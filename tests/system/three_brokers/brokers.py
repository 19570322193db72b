"""The brokers of these tests, and the faults that they and the workers of a graph suffer together."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from typing import Final

from kstreams_py.embedded import EmbeddedKafka
from tests.system.harness import WorkerProcess, wait_until
from tests.system.recorder import Recorder

BROKERS: Final = 3

IN_SYNC: Final = {"min.insync.replicas": "2"}

STOP_SECONDS: Final = 60.0
"""How long a broker may take to hand over its partitions on a busy machine."""


def stop(brokers: EmbeddedKafka, broker: int) -> None:
    """Stops one broker cleanly (SIGTERM); fails if it had to be killed."""
    assert brokers.terminate(broker, STOP_SECONDS), f"broker {broker} did not stop within {STOP_SECONDS:g} s"


class Suffering:
    """Two workers of a graph while brokers come and go; others replace those that are killed or frozen.

    - `start`: starts a worker in a slot.
    - `processors`: by their ids; a worker has joined once all of them hold partitions.
    - `count`: how many outputs there are.
    """

    def __init__(
        self,
        brokers: EmbeddedKafka,
        recorder: Recorder,
        start: Callable[[int], WorkerProcess],
        processors: Sequence[str],
        count: Callable[[], int],
        seed: int,
    ) -> None:
        self.brokers, self.recorder, self.chance = brokers, recorder, random.Random(seed)
        self.start, self.processors, self.count = start, processors, count
        self.workers: list[WorkerProcess] = []
        self.frozen: list[WorkerProcess] = []

    def begin(self) -> None:
        self.workers = [self.start(slot) for slot in range(2)]
        self.await_joined()

    def start_again(self) -> None:
        """Starts a worker again that found no broker at its start, as a supervisor does."""
        for slot, worker in enumerate(self.workers):
            if worker.process.poll() is not None:
                assert (worker.wait(), "holds" in worker.text) == (3, False), worker.text
                self.workers[slot] = self.start(slot)

    def await_more(self, count: int = 40) -> None:
        """Waits for more outputs."""
        least = self.count() + count

        def goes_on() -> bool:
            self.start_again()
            return self.count() >= least

        wait_until(goes_on, f"{least} outputs")

    def has_joined(self, worker: WorkerProcess) -> bool:
        text = worker.text
        return all(f"{each}: holds" in text for each in self.processors)

    def await_joined(self) -> None:
        """Waits until the workers hold partitions: a frozen one that is resumed before would have its slot back."""

        def have_joined() -> bool:
            self.start_again()
            return all(map(self.has_joined, self.workers))

        wait_until(have_joined, "the workers have joined")

    def restart_one(self, broker: int) -> None:
        self.recorder.history.fault(f"broker {broker} is stopped")
        stop(self.brokers, broker)
        self.await_more()
        self.bring_back(broker)

    def kill_one(self, broker: int) -> None:
        """Kills a broker, and a worker, whose successor restores while the broker is down."""
        slot = self.chance.randrange(2)
        self.recorder.history.fault(f"broker {broker} and worker {slot} are killed")
        self.brokers.kill(broker)
        self.workers[slot].kill()
        self.workers[slot] = self.start(slot)
        self.await_more()
        self.bring_back(broker)

    def freeze_one(self, broker: int) -> None:
        """Freezes a broker, and a worker, whose successor takes its slot; the worker is resumed at the end."""
        slot = self.chance.randrange(2)
        wait_until(lambda: self.has_joined(self.workers[slot]), f"worker {slot} has joined")
        self.recorder.history.fault(f"broker {broker} and worker {slot} are frozen")
        self.brokers.pause(broker)
        self.workers[slot].send(signal.SIGSTOP)
        self.frozen.append(self.workers[slot])
        self.workers[slot] = self.start(slot)
        self.await_more()
        self.recorder.history.fault(f"broker {broker} is resumed")
        self.brokers.resume(broker)
        self.recorder.await_in_sync()

    def bring_back(self, broker: int) -> None:
        self.brokers.restart(broker)
        self.recorder.history.fault(f"broker {broker} is up again")
        self.recorder.await_in_sync()

    def redeploy(self, *_: int) -> None:
        """Stops one worker after the other, and starts it again."""
        for slot in range(len(self.workers)):
            self.await_joined()
            self.await_more()
            self.recorder.history.fault(f"worker {slot} is stopped")
            self.stop(self.workers[slot])
            self.workers[slot] = self.start(slot)

    def stop(self, *workers: WorkerProcess) -> None:
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0] * len(workers), [worker.text for worker in workers]

    def resume(self) -> None:
        for worker in self.frozen:
            worker.send(signal.SIGCONT)

    def finish(self) -> None:
        """Ends the workers; those that were frozen have been replaced."""
        assert [worker.wait() for worker in self.frozen] == [4] * len(self.frozen)
        self.await_joined()
        self.stop(*self.workers)
