"""Replays dead letters: the original input goes through its processor again.

**The replay.** For each selected dead letter without a mark, a replay runs the step: it reads the inputs again from
their topics, decodes them, calls the function, and encodes the results. It writes the outputs and a mark of the dead
letter in one transaction of its own producer. It does not write the inputs to their topic again: every processor of
that topic would read them, other outputs would be doubled, the step would have another delivery hash, and a join would
pair the record with one that it does not belong to.

**After a crash.** A new replay first fences the previous one, and so ends its transaction, then reads the marks. A
dead letter has its outputs and its mark, or neither: nothing is sent twice, and nothing is lost. The function runs
again for dead letters that were not committed, with the delivery hash of the first delivery: a sink that stores the
hash skips rows that it has. If two replays run concurrently, the second fences the first, which exits with status 4.

**What stays.** A dead letter stays, and the exit status is 1, if

- its function raises again, or a topic refuses an output;
- its processor or its inputs are no longer in the graph;
- it differs from the records that it names;
- those records are no longer in their topics. With `--unverified`, such a dead letter is trusted unless it was cut.

A replay writes no dead letters: it tries each once, so there is no loop. After Stop, or an exception that stops a
worker (`stop_on`, a registry that does not answer), the replay commits the finished steps and ends.

- *Joins*: the dead letter has one record of each input. The function gets them in the order of its processor's inputs.
- *Alts*: the dead letter has the one input that was chosen. No journal is needed, because nothing is chosen again.
- *Batches*: the function gets a list of one value.
- *Refused outputs*: a dead letter for a refused output is replayed like others. With at_most_once, other outputs of the
  step have already been written: the dead letter stays if the step could have several outputs.
- *Sinks with a target*: rows are stored with their delivery hashes before the mark is committed. After a crash in
  between, the target recognizes them. With offsets as evidence a dead letter stays: a crash would store its rows twice.
- *At least once*: a crash can leave several dead letters of one delivery: one is run, and all are marked. If the
  delivery succeeded after its dead letter was written, a replay sends it once more, as this guarantee allows.
- *Weaker guarantees*: outputs and marks are transactional for them too. A reader must be `read_committed`, or it sees
  the outputs of aborted attempts. Side effects of a function may happen more than once under every guarantee.
- *Order*: the outputs of a dead letter come later than its neighbours' outputs, with the timestamp of the input. Dead
  letters are replayed by partition in the order in which they failed.
- *Offsets that were set back*: a dead letter stays until the group has passed its inputs again, because the workers
  will read them. A delivery that fails again writes a new dead letter, which is replayed on its own.

Marks are in `__ks.<graph>.replayed` (compacted). A replay deletes the marks of deleted dead letters. If that topic is
deleted, all dead letters count as neither replayed nor discarded. A replay leaves discarded dead letters out, unless
`--discarded` includes them: its marks then replace the marks of the discard.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_py.errors import Refused, RowRefused, Stop
from kstreams_py.graph.names import group_of
from kstreams_py.graph.sink import Row, SinkConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Output
from kstreams_py.operations.dead_letters.originals import Originals
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.dead_letters.steps import LetterSteps
from kstreams_py.operations.dead_letters.transactions import Done, ReplayTransactions
from kstreams_py.processing.dead_letters.letters import Letter, LetterPlace, LetterSelection
from kstreams_py.records import Inputs
from kstreams_py.steps.dead_letters import Failure
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.outputs import are_many, value_bytes
from kstreams_py.steps.rows import split


class RowWriter:
    """Stores rows, and connects to each target before its first row."""

    def __init__(self, graph: Graph, environment: Environment) -> None:
        self._graph = graph
        self._open = environment.open_sink
        self._targets = {each.id: each.target for each in graph.processors if each.target is not None}
        self._connections: dict[str, SinkConnection] = {}

    def write(self, steps: Iterable[Done]) -> None:
        """Stores the rows of steps, grouped by processor. A row whose hash is already stored stays as it is.

        Raises RowRefused if a target will never accept a row, SinkUnavailable if a target cannot be used.
        """
        rows: dict[str, list[Row]] = defaultdict(list)
        for step in steps:
            rows[step.letter.processor_id] += step.rows
        for processor, found in rows.items():
            if found:
                self._connection(processor).write(found, {}, {})

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, processor: str) -> SinkConnection:
        if processor not in self._connections:
            consumer = group_of(self._graph.name, processor)
            self._connections[processor] = self._open(self._targets[processor], consumer)
        return self._connections[processor]


logger = logging.getLogger(__name__)

STEPS_MAX: Final = 100
"""The maximum number of steps in one transaction."""

SECONDS_MAX: Final = 1.0
"""Seconds of running steps before a commit; the transaction is open only while outputs are written."""

PROGRESS_SECONDS: Final = 2.0
"""Seconds between two lines of progress."""


class ReplayOutcome(StrEnum):
    """The result for a selected dead letter."""

    REPLAYED = "replayed"
    FAILED = "failed again"
    STAYS = "cannot be replayed"


Report = Callable[[Letter, ReplayOutcome, str], None]
"""Called for each selected dead letter after its transaction is committed, with the reason if it stays."""


@dataclass(slots=True)
class Summary:
    """The result of a replay: numbers of dead letters by outcome.

    - `discarded`: how many of the selected ones were left out, because they are discarded.
    - `stopped`: why the replay ended early; "" if it did not.
    - `unreadable`: see LetterReader.unreadable.
    """

    counts: dict[ReplayOutcome, int] = field(default_factory=lambda: dict.fromkeys(ReplayOutcome, 0))
    discarded: int = 0
    stopped: str = ""
    unreadable: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every selected dead letter is replayed."""
        return not (self.counts[ReplayOutcome.FAILED] or self.counts[ReplayOutcome.STAYS] or self.stopped)


def plan_replay(
    graph: Graph,
    environment: Environment,
    selection: LetterSelection,
    report: Report,
    *,
    unverified: bool = False,
    takes_discarded: bool = False,
) -> Summary:
    """Reports what a replay would run; runs, writes and fences nothing. Takes and raises the same as `replay`."""
    reader = LetterReader(graph, environment)
    steps, summary = LetterSteps(graph, environment, Originals(graph, environment, unverified=unverified)), Summary()
    chosen, summary.discarded = reader.waiting(selection, reader.marks(discards=not takes_discarded))
    for letter, inputs in _prepared(reader, steps, chosen.__contains__):
        why = inputs if isinstance(inputs, str) else ""
        outcome = ReplayOutcome.STAYS if why else ReplayOutcome.REPLAYED
        summary.counts[outcome] += 1 if why else len(chosen[letter.place])
        report(letter, outcome, why)
    summary.unreadable = reader.unreadable
    return summary


def replay(
    graph: Graph,
    environment: Environment,
    selection: LetterSelection,
    report: Report,
    *,
    unverified: bool = False,
    takes_discarded: bool = False,
) -> Summary:
    """Replays the selected dead letters that wait.

    - `unverified`: also replays dead letters that cannot be compared with the records in their input topics.
    - `takes_discarded`: also replays discarded dead letters.

    Raises UserMistake if the selection names something that does not exist, GraphError or TopicError if there is no
    dead-letter topic, NotAuthorized, Replaced if another replay or a discard begins, and an exception of a function
    that stops a worker.
    """
    reader = LetterReader(graph, environment)
    transactions = ReplayTransactions(graph, reader, environment, takes_discarded=takes_discarded)
    rows = RowWriter(graph, environment)
    steps = LetterSteps(graph, environment, Originals(graph, environment, unverified=unverified))
    try:
        transactions.start()
        with closing(rows):
            return _Replay(reader, steps, transactions, rows, report, environment.clock).run(selection)
    finally:
        transactions.end()


def _prepared(
    reader: LetterReader, steps: LetterSteps, waits: Callable[[LetterPlace], bool]
) -> Iterator[tuple[Letter, Inputs | str]]:
    """Yields one waiting dead letter of each delivery with its step's inputs, and each that stays with the reason.

    A dead letter that stays does not represent its delivery, because it may be forged.
    """
    prepared = set[bytes]()
    for letter in reader.letters():
        if letter.delivery_hash in prepared or not waits(letter.place):
            continue
        inputs = steps.prepare(letter)
        if not isinstance(inputs, str):
            prepared.add(letter.delivery_hash)
        yield letter, inputs


class _Replay:
    """One replay."""

    def __init__(
        self,
        reader: LetterReader,
        steps: LetterSteps,
        transactions: ReplayTransactions,
        rows: RowWriter,
        report: Report,
        clock: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._steps = steps
        self._transactions = transactions
        self._rows = rows
        self._report = report
        self._clock = clock
        self._summary = Summary()
        self._done: list[Done] = []
        self._outputs: list[Output] = []
        self._begun = self._shown = self._clock()

    def run(self, selection: LetterSelection) -> Summary:
        chosen, self._summary.discarded = self._reader.waiting(selection, self._transactions.marks)

        def waits(place: LetterPlace) -> bool:
            # another replay may have run since: see ReplayTransactions.marks
            return place in chosen and self._transactions.marks.keys().isdisjoint(chosen[place])

        letters = len({place for places in chosen.values() for place in places})
        for letter, inputs in _prepared(self._reader, self._steps, waits):
            try:
                self._run_step(letter, chosen[letter.place], inputs)
            except Stop as stop:
                self._summary.stopped = f"{letter.place}: its function raised Stop{f': {stop}' if str(stop) else ''}"
                break
            except Exception:
                self._commit()
                raise
            if self._is_due:
                self._commit()
                self._show_progress(letters)
        self._commit()
        self._summary.unreadable = self._reader.unreadable
        return self._summary

    def _run_step(self, letter: Letter, places: Sequence[LetterPlace], inputs: Inputs | str) -> None:
        if not self._done:
            self._begun = self._clock()
        if isinstance(inputs, str):
            self._count(letter, ReplayOutcome.STAYS, inputs)
            return
        outputs = self._steps.run(letter, inputs)
        if isinstance(outputs, Failure):
            self._count(letter, ReplayOutcome.FAILED, str(outputs))
            return
        rows, others = split(outputs)
        self._done.append(Done(letter, places, others, rows))
        self._outputs += outputs

    @property
    def _is_due(self) -> bool:
        return bool(self._done) and (
            len(self._done) >= STEPS_MAX
            or are_many(self._outputs, value_bytes(self._outputs))
            or self._clock() - self._begun >= SECONDS_MAX
        )

    def _commit(self) -> None:
        """Commits the finished steps together, or one by one if an output or a row is refused."""
        done, self._done, self._outputs = self._done, [], []
        if not done:
            return
        try:
            self._rows.write(done)
            self._transactions.commit(done)
        except (Refused, RowRefused) as refused:
            if len(done) == 1:
                self._count(done[0].letter, ReplayOutcome.FAILED, str(refused))
                return
        else:
            for step in done:
                self._count(step.letter, ReplayOutcome.REPLAYED, "", len(step.places))
            return
        for step in done:
            self._done = [step]
            self._commit()

    def _count(self, letter: Letter, outcome: ReplayOutcome, why: str, letters: int = 1) -> None:
        self._summary.counts[outcome] += letters
        self._report(letter, outcome, why)

    def _show_progress(self, letters: int) -> None:
        if self._clock() - self._shown >= PROGRESS_SECONDS:
            self._shown = self._clock()
            counts = ", ".join(f"{count:,} {outcome}" for outcome, count in self._summary.counts.items() if count)
            logger.info("dead letters: %s, of %s", counts, f"{letters:,}")
