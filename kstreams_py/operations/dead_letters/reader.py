"""Reads the dead letters of a graph, and their marks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kstreams_py.errors import BrokerUnavailable, DecodeError, GraphError, TopicError, UserMistake
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.graph.names import id_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.foreign_records import foreign
from kstreams_py.kafka.transactions import find_command_at
from kstreams_py.operations.committed import find_all_topics
from kstreams_py.operations.pages import open_pages
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.dead_letters.letters import Letter, LetterPlace, LetterSelection, Mark, parse
from kstreams_py.processing.dead_letters.marks import marked_place, read_mark
from kstreams_py.processing.topics import ask_clusters
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

UNREADABLE_NAMED: Final = 20
"""The maximum number of foreign records that are named one by one, separately for dead letters and for marks."""

MARK: Final = "a mark of a replayed dead letter"

LOOK_SECONDS: Final = 0.05

TOLD_SECONDS: Final = 1.0
"""Seconds of waiting after which a warning names the reason."""


def await_letters(graph: Graph, environment: Environment, *, required: bool = True) -> None:
    """Waits until no open transaction hides dead letters that were written before this call.

    - `required`: see LetterReader.

    Raises BrokerUnavailable if a transaction stays open longer than its timeout allows, and the same as LetterReader.
    """
    cluster, settings = environment.cluster, environment.settings
    topics = LetterReader(graph, environment, required=required).topics
    partitions = [TopicPartition(name, n) for name, info in topics.items() for n in range(info.partitions)]
    highs = ask_clusters(graph, cluster, partitions, lambda each, its: each.ends(its, committed=False))
    seconds = (settings.transaction_timeout_ms + settings.request_timeout_ms) / 1000
    deadline, is_told = environment.clock() + seconds, False
    while True:
        stable = ask_clusters(graph, cluster, partitions, lambda each, its: each.ends(its))
        if not (hidden := sorted(tp for tp in partitions if stable[tp] < highs[tp])):
            return
        if environment.clock() >= deadline:
            find = find_command_at(settings.bootstrap_servers, sorted(topics))
            raise BrokerUnavailable(
                f"{hidden[0]}: an open transaction hides dead letters after offset {stable[hidden[0]]}: `{find}` "
                "prints the command that ends it; then start again"
            )
        if not is_told and environment.clock() >= deadline - seconds + TOLD_SECONDS:
            logger.warning("%s: an open transaction hides dead letters; waiting up to %.0f s for its end", hidden[0],
                           seconds)  # fmt: skip
            is_told = True
        environment.sleep(LOOK_SECONDS)


class _Foreign:
    """Collects foreign records: names the first UNREADABLE_NAMED, and counts the others."""

    def __init__(self) -> None:
        self._named: list[str] = []
        self._unnamed = 0

    def add(self, sentence: str) -> None:
        if len(self._named) < UNREADABLE_NAMED:
            self._named.append(sentence)
        else:
            self._unnamed += 1

    def described(self) -> list[str]:
        return self._named + ([f"{self._unnamed:,} more records"] if self._unnamed else [])


class SelectedLetters(NamedTuple):
    """The selected dead letters that wait.

    - `places`: their places, each with the places of all waiting dead letters of its delivery: with at_least_once, a
      crash can leave several.
    - `discarded`: how many selected dead letters do not wait because they are discarded.
    """

    places: dict[LetterPlace, list[LetterPlace]]
    discarded: int


class LetterReader:
    """Reads the dead letters that existed when this reader was created."""

    def __init__(self, graph: Graph, environment: Environment, *, required: bool = True) -> None:
        """Finds the topics of the dead letters. Raises TopicError if one is missing.

        - `required`: whether to raise GraphError if the graph declares no dead-letter topic. If False, there is nothing
          to read in that case.
        """
        self._cluster = environment.cluster
        attempts = Attempts(f"{graph.name}: dead letters", graph.name, environment.sleep)
        self._graph = graph
        self._pages = open_pages(graph, self._cluster, attempts)
        names = [topic.name for topic in graph.topics.values() if topic.value is dead_letters()]
        if required and not names:
            raise GraphError(
                f"graph {graph.name!r} has no topic for dead letters: declare one with errors=, of the graph or of a "
                "processor"
            )
        found = find_all_topics(graph, self._cluster, names)
        self._has_marks = graph.replayed in self._cluster.topics([graph.replayed])
        self.topics: dict[str, TopicInfo] = found
        """The topics of dead letters, by name."""
        self._decode: dict[str, Callable[[bytes], Any]] = {
            name: bind(graph.topics[name].value, environment.registry, f"{name}-value").deserialize for name in found
        }
        partitions = [TopicPartition(name, n) for name, info in found.items() for n in range(info.partitions)]
        self._ends = ask_clusters(graph, self._cluster, partitions, lambda cluster, each: cluster.ends(each))
        self._no_letters, self._no_marks = _Foreign(), _Foreign()

    def letters(self) -> Iterator[Letter]:
        """Yields the dead letters of this graph's processors, by topic, partition and offset."""
        self._no_letters = _Foreign()
        for tp, end in sorted(self._ends.items()):
            for m in self._pages[self._graph.topics[tp.topic].cluster].between(tp, 0, end):
                try:
                    letter = parse(m, self._decode[tp.topic])
                except DecodeError as error:
                    self._no_letters.add(str(error))
                    continue
                if letter.is_of(self._graph.name):
                    yield letter

    @property
    def unreadable(self) -> list[str]:
        """The records that the last `letters` and `marks` could not read, each with the reason."""
        return self._no_letters.described() + self._no_marks.described()

    def marks(self, *, discards: bool = True) -> dict[LetterPlace, Mark]:
        """Returns the marks by the places of their dead letters. Raises TopicError if marks may be missing.

        - `discards`: if False, the marks of discarded dead letters are left out.
        """
        self._no_marks = _Foreign()
        if not self._has_marks:
            return {}
        tp = TopicPartition(self._graph.replayed, 0)
        found = dict[LetterPlace, Mark]()
        for m in self._pages[""].between(tp, 0, self._cluster.ends([tp])[tp]):
            try:
                is_deletion = m.value() is None
            except DecodeError as error:
                raise TopicError(
                    f"{foreign(m, MARK, error)}: marks may be among them, and their dead letters would be sent twice: "
                    f"delete the replayed dead letters, then the records of {tp} before offset {m.offset() + 1} "
                    "(`kafka-delete-records`): the remaining dead letters then count as not replayed"
                ) from None
            try:
                place = marked_place(m, self.topics)
            except ValueError as error:
                self._no_marks.add(f"{foreign(m, MARK, error)}: it is passed over")
                continue
            if place is None:
                continue
            if is_deletion:
                found.pop(place, None)
                continue
            try:
                found[place] = read_mark(m)
            except ValueError as error:  # this record may have replaced a mark (compaction): send nothing twice
                found[place] = Mark(m.timestamp()[1])
                counts = f"the dead letter {place}, which its key names, counts as replayed"
                self._no_marks.add(f"{foreign(m, MARK, error)}: {counts}")
        return found if discards else {place: mark for place, mark in found.items() if not mark.is_discard}

    def deleted(self, places: Collection[LetterPlace]) -> list[LetterPlace]:
        """Returns the places of dead letters that retention has deleted."""
        starts = ask_clusters(self._graph, self._cluster, self._ends, lambda cluster, each: cluster.starts(each))
        return sorted(each for each in places if each.offset < starts.get(TopicPartition(*each[:2]), 0))

    def expect_marks(self) -> None:
        """Notes that the topic of the marks exists from now on."""
        self._has_marks = True

    def selected(self, selection: LetterSelection) -> Iterator[Letter]:
        """Yields the selected dead letters, including replayed ones.

        Raises UserMistake after the last one if the selection names something that does not exist.
        """
        return (letter for letter, fits in self._judged(selection) if fits)

    def waiting(self, selection: LetterSelection, marks: Mapping[LetterPlace, Mark]) -> SelectedLetters:
        """Returns the selected dead letters that have none of these marks. Raises the same as `selected`."""
        waiting, chosen, discarded = dict[bytes, list[LetterPlace]](), dict[LetterPlace, bytes](), 0
        for letter, fits in self._judged(selection):
            mark = marks.get(letter.place)
            if mark is None:
                waiting.setdefault(letter.delivery_hash, []).append(letter.place)
                if fits:
                    chosen[letter.place] = letter.delivery_hash
            discarded += fits and mark is not None and mark.is_discard
        return SelectedLetters({place: waiting[digest] for place, digest in chosen.items()}, discarded)

    def _judged(self, selection: LetterSelection) -> Iterator[tuple[Letter, bool]]:
        """Yields each dead letter, and whether it is selected; then checks the names in the selection."""
        processors, named = set[str](), False
        for letter in self.letters():
            processors.add(letter.processor_id)
            fits = selection.fits(letter)
            named |= fits
            yield letter, fits
        self._check(selection, processors, named=named)

    def _check(self, selection: LetterSelection, processors: Collection[str], *, named: bool) -> None:
        """Raises UserMistake for a selection with a processor, topic or place that does not exist.

        - `processors`: the ids of the processors with dead letters; the graph may no longer declare them.
        - `named`: whether a dead letter matches the selection.
        """
        declared = [*(each.id for each in self._graph.processors), *(each.id for each in self._graph.tasks)]
        known = sorted({*declared, *processors})
        if selection.processor is not None and id_of(self._graph.name, selection.processor, known) not in known:
            raise UserMistake(
                f"graph {self._graph.name!r} has no processor {selection.processor!r}: it has {', '.join(known)}"
            )
        if selection.topic is not None and selection.topic not in self.topics:
            raise UserMistake(
                f"topic {selection.topic!r} has no dead letters of graph {self._graph.name!r}: they are in "
                f"{', '.join(self.topics)}"
            )
        if selection.offset is not None and not named:
            raise UserMistake(
                f"no dead letter of graph {self._graph.name!r} at partition {selection.partition}, offset "
                f"{selection.offset} fits: `kstreams dead-letters show` prints places"
            )
