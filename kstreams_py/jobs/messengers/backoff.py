"""The waits between attempts to reach a peer that is away or busy."""

from __future__ import annotations

from dataclasses import dataclass

from kstreams_py.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The waits between attempts.

    - `initial`: seconds before the second attempt.
    - `factor`: each wait is this many times the one before.
    - `longest`: the most seconds of a wait, before `jitter` changes it.
    - `give_up`: seconds without an answer after which the peer is reported, and other peers are used instead. The
      attempts go on: while the peer is a member, only it can say what it has taken.
    - `jitter`: the part by which chance makes a wait longer or shorter, so that not all peers ask at the same time.

    Raises SettingsError for values that make no sense.
    """

    initial: float = 0.05
    factor: float = 2.0
    longest: float = 5.0
    jitter: float = 0.2
    give_up: float = 30.0

    def __post_init__(self) -> None:
        if not (0 < self.initial <= self.longest < float("inf") and self.factor >= 1 and 0 <= self.jitter < 1):
            raise SettingsError(
                f"{self}: give an initial wait above 0, a longest one that is not shorter, a factor of 1 or more, and "
                "a jitter from 0 to below 1"
            )

    def wait(self, attempts: int, chance: float) -> float:
        """Returns the seconds until the next attempt.

        - `attempts`: how many attempts have failed, from 1.
        - `chance`: a random number from 0 to 1.
        """
        seconds, longest = self.initial, self.longest
        for _ in range(attempts - 1):  # a power would overflow after a long outage
            if seconds >= longest:
                break
            seconds *= self.factor
        return min(seconds, longest) * (1 + self.jitter * (2 * chance - 1))
