"""Waits for records that decide a recovery and that an open transaction hides, up to a limit."""

from __future__ import annotations

import time
from typing import Final, NoReturn

from kstreams_py.errors import KStreamsError, Retriable, Unavailable
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.kafka.transactions import command, find_command, place_options
from kstreams_py.processing.environment import Environment
from kstreams_py.records import TopicPartition

MARGIN_SECONDS: Final = 30.0
"""Seconds to wait beyond transaction_timeout_ms: a coordinator looks for timed-out transactions every 10 s."""


class HiddenWaits:
    """The waits of one worker for records that a transaction hides."""

    def __init__(self, processor: str, environment: Environment) -> None:
        """`processor` is its id."""
        self._processor = processor
        self._settings = environment.settings
        self._clock = environment.clock
        self._limit = environment.settings.transaction_timeout_ms / 1000 + MARGIN_SECONDS
        self._since: dict[TopicPartition, float] = {}
        """By partition, the clock time since which records are hidden."""

    def clear(self) -> None:
        """Notes that nothing is hidden any more."""
        self._since.clear()

    def wait(self, cluster: Cluster, tp: TopicPartition, offset: int, what: str, name: str = "") -> NoReturn:
        """Raises Retriable, and Unavailable after `transaction_timeout_ms` and MARGIN_SECONDS; both name commands.

        - `cluster`, `name`: the cluster that has the partition, and its name in the settings.
        - `offset`: the offset of the first hidden record, which `what` describes.
        """
        options = place_options(self._settings.bootstrap_servers, name)
        hides = f"{self._processor}: a transaction hides {what}"
        if self._clock() - self._since.setdefault(tp, self._clock()) < self._limit:
            raise Retriable(f"{hides}: `{find_command(options, [tp.topic])}` shows whether it hangs")
        try:
            found = [each for each in cluster.open_transactions(tp) if each.start <= offset]
        except KStreamsError as error:
            raise Unavailable(
                f"{hides}, for more than {self._limit:g} s, and which one is not known: {error}: end it by the command "
                f"that `{find_command(options, [tp.topic])}` prints, then start again"
            ) from None
        if not found:
            raise Retriable(f"{hides}, which has ended just now")
        now = time.time()
        known = "; ".join(each.describe(now) for each in found)
        ends = [f"`{command('abort', tp, each.start)}{options}`" for each in found if each.hangs is not False]
        remedy = f"end it by {', '.join(ends)}" if ends else "stop its producer, or wait for its time-out"
        raise Unavailable(
            f"{hides}, for more than {self._limit:g} s, and whether the delivery was committed is not known without "
            f"them: {known}: {remedy}, then start again"
        )
