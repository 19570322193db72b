"""The counts of a processor: records in and out, dead letters, commits, aborts, lag."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kstreams_py.records import Positions


@dataclass(slots=True)
class Counters:
    """Counts of one processor in one worker since it started; only that worker's thread writes them."""

    records_in: int = 0
    records_out: int = 0
    dead_letters: int = 0
    commits: int = 0
    aborts: int = 0
    retries: int = 0

    def stepped(self, *, read: int, written: int, failed: int) -> None:
        """Counts steps that were run and are not committed yet.

        - `read`: records that the steps read.
        - `written`: outputs, without dead letters.
        - `failed`: steps that failed; each has a dead letter if the processor has a topic for them.
        """
        self.records_in += read
        self.records_out += written
        self.dead_letters += failed

    def committed(self) -> None:
        """Counts a commit."""
        self.commits += 1

    def aborted(self) -> None:
        """Counts an abort; its steps will be run again."""
        self.aborts += 1

    def retried(self) -> None:
        """Counts a step, or a batch, that failed and is run again."""
        self.retries += 1

    def as_dict(self) -> dict[str, int]:
        """Name to count."""
        return asdict(self)


def lag(positions: Positions, ends: Positions) -> int:
    """Records (and markers) between next offsets (`positions`) and last stable offsets (`ends`)."""
    return sum(max(0, ends.get(tp, position) - position) for tp, position in positions.items())
