"""Discards dead letters: marks those that nobody needs, so that they no longer wait.

A discard deletes nothing: a dead letter stays in its topic as long as the topic keeps it. A discard writes its marks as
a replay does: in transactions with the same transactional id. After a crash, each dead letter is either marked or not.
No dead letter is marked twice, and a discard and a replay that run concurrently cannot both take the same dead letter.

Only the selected dead letters are marked, not others with the same delivery hash: a forged dead letter may have it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kstreams_py.errors import SettingsError
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Output
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.dead_letters.transactions import ReplayTransactions
from kstreams_py.processing.dead_letters.letters import Letter, LetterPlace, LetterSelection
from kstreams_py.processing.dead_letters.marks import mark_record
from kstreams_py.steps.environment import Environment

REASON_MAX: Final = 500
"""The maximum length of a reason: one transaction may write thousands of marks."""


def check_reason(reason: str) -> str:
    """Returns a reason without white space around it. Raises SettingsError if it is empty or too long."""
    reason = reason.strip()
    if not reason:
        raise SettingsError(
            "--reason is empty: write why nobody needs these dead letters, as `kstreams dead-letters list` shows it"
        )
    if len(reason) > REASON_MAX:
        raise SettingsError(
            f"--reason has {len(reason):,} characters, and {REASON_MAX} is the limit: write where the rest can be read"
        )
    return reason


class Discard:
    """The dead letters that a discard marks: the selected ones that wait when it is created."""

    def __init__(
        self,
        graph: Graph,
        environment: Environment,
        selection: LetterSelection,
        reason: str,
        report: Callable[[Letter], None] = lambda _: None,
    ) -> None:
        """Reads the dead letters, and writes nothing.

        - `report`: called with each dead letter to mark.

        Raises UserMistake if the selection names something that does not exist, GraphError or TopicError if there is no
        dead-letter topic, and NotAuthorized.
        """
        self._graph, self._environment = graph, environment
        self._reader = reader = LetterReader(graph, environment)
        self._marks: dict[LetterPlace, Output] = {}
        settled = reader.marks()
        for letter in reader.selected(selection):
            if letter.place not in settled:
                self._marks[letter.place] = mark_record(graph.replayed, letter.place, letter, reader.topics, reason)
                report(letter)

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def unreadable(self) -> list[str]:
        """See LetterReader.unreadable."""
        return self._reader.unreadable

    def run(self) -> None:
        """Marks the dead letters. Raises NotAuthorized, and Replaced if a replay or another discard begins."""
        transactions = ReplayTransactions(self._graph, self._reader, self._environment)
        try:
            transactions.start()
            transactions.mark(self._marks)
        finally:
            transactions.end()
