"""Finds inputs whose newest records open transactions hide, and whose these are.

A reader of committed records stops at the last stable offset: behind a producer that died in a transaction it has
nothing to do, its lag is 0, and all of it looks well.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kstreams_py.kafka.contracts import Cluster
from kstreams_py.kafka.transactions import command
from kstreams_py.log_fields import repeated
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.running.http.remedies import HIDDEN_SECONDS as HIDDEN_TOO_LONG

logger = logging.getLogger(__name__)

HIDDEN_SECONDS: Final = 10.0
"""Seconds for which a last stable offset must have stood before its end, until that counts: others commit as well."""

ASKED_SECONDS: Final = 30.0
"""Seconds between two requests for the transactions that are open on the same partition."""

PAUSE_SECONDS: Final = 5.0
"""Seconds between two requests of one slot: each makes a client of its own."""


class Hidden(NamedTuple):
    """For how many seconds records have been hidden, which, by whom, as text, and of how many partitions."""

    seconds: float = 0.0
    text: str = ""
    partitions: int = 0


@dataclass(slots=True)
class _Held:
    """A last stable offset that is below the high watermark, since when, and whether the log says so."""

    stable: int
    since: float
    is_logged: bool = False


class HiddenRecords:
    """The hidden records of the inputs of one slot. Its lag thread looks, another one asks whose they are."""

    def __init__(self, cluster: Cluster, wall: Callable[[], float] = time.time) -> None:
        """`wall` returns seconds since 1970."""
        self._cluster = cluster
        self._wall = wall
        self._held: dict[TopicPartition, _Held] = {}
        self._found: dict[TopicPartition, Hidden] = {}
        self._asked_at: dict[TopicPartition, float] = {}
        """When each partition was asked for last: transactions that follow one another ask no more often."""
        self._answers: dict[TopicPartition, tuple[int, str]] = {}
        """The newest answer about each partition: the stable offset that it was asked for, and who holds it."""

    def look(self, stable: Positions, highs: Iterable[Positions], now: float) -> None:
        """Takes the last stable offsets, and of each worker the high watermarks, which may be older.

        Both only grow: a stable offset below an old high watermark is below the newest as well. `now` is in monotonic
        seconds. Makes no request.
        """
        above = {tp for each in highs for tp, high in each.items() if tp in stable and high > stable[tp]}
        held, found = {}, {}
        for tp in sorted(above):
            before = self._held.get(tp)
            held[tp] = each = before if before and before.stable == stable[tp] else _Held(stable[tp], now)
            if (seconds := now - each.since) >= HIDDEN_SECONDS:
                found[tp] = Hidden(seconds, f"{tp} is hidden by {self._by(tp, each.stable)}", 1)
                self._log(each, found[tp])
        self._held, self._found = held, found

    def _by(self, tp: TopicPartition, stable: int) -> str:
        asked_for, by = self._answers.get(tp, (None, ""))
        return by if asked_for == stable else f"a transaction from offset {stable}"

    def _log(self, held: _Held, hidden: Hidden) -> None:
        """Logs once what is a bad finding from now on."""
        if hidden.seconds > HIDDEN_TOO_LONG and not held.is_logged:
            held.is_logged = True
            logger.warning(
                "for %.0f s, readers of committed records see nothing new: %s",
                hidden.seconds,
                hidden.text,
                extra=repeated("inputs that a transaction hides", hidden.text),
            )

    def ask(self, now: float) -> None:
        """Asks for the open transactions of one hidden partition, if a request is due; it may take long.

        Of several, the one that was asked for least recently, then the one that is hidden longest.
        """
        held, never = self._held, -math.inf
        if now - max(self._asked_at.values(), default=never) < PAUSE_SECONDS:
            return
        self._asked_at = {tp: at for tp, at in self._asked_at.items() if now - at < ASKED_SECONDS or tp in held}
        self._answers = {tp: answer for tp, answer in self._answers.items() if tp in held}
        due = [
            (self._asked_at.get(tp, never), each.since, tp, each.stable)
            for tp, each in held.items()
            if now - each.since >= HIDDEN_SECONDS and now - self._asked_at.get(tp, never) >= ASKED_SECONDS
        ]
        if due:
            _, _, tp, stable = min(due)
            self._asked_at[tp] = now
            self._answers[tp] = stable, self._look_up(tp, stable)

    def _look_up(self, tp: TopicPartition, stable: int) -> str:
        try:
            first = min(self._cluster.open_transactions(tp), key=lambda each: each.start, default=None)
        except Exception as error:  # of a client's mistake too: the thread that asks must go on
            return f"a transaction from offset {stable}, which cannot be looked up: {error}"
        ended = f"a transaction from offset {stable}, which has just ended"
        if first is None:
            return ended
        found = first.describe(self._wall())
        return f"{found}: `{command('abort', tp, first.start)}`" if first.hangs else found

    def of(self, partitions: Iterable[TopicPartition]) -> Hidden:
        """What is hidden of these partitions: the longest time, and the text of that one."""
        of_all = self._found
        found = [of_all[tp] for tp in partitions if tp in of_all]
        if not found:
            return Hidden()
        longest = max(found)
        more = f" (and of {len(found) - 1} more partitions)" if len(found) > 1 else ""
        return Hidden(round(longest.seconds, 1), longest.text + more, len(found))
