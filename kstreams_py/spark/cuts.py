"""A cut: which records of several topics are inside, so that each transaction is inside on all topics or on none.

A record is inside the cut if it is below `settled` of its partition. Between `settled` and `end`, it is inside if the
step that made it is before the offset that its processor had committed. A pipeline that writes a topic commits the
numbers of its runs as offsets. Records without such a writer are inside if they are below `end`. docs/cuts.md explains
why this keeps each transaction whole, and why a record inside a cut is inside each later one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kstreams_py.errors import SettingsError, UserMistake, did_you_mean
from kstreams_py.graph.declarations import Processor, Topic
from kstreams_py.graph.hashes import hash_prefix, pack_offset
from kstreams_py.graph.limits import why_not_cut
from kstreams_py.graph.names import runs_topic
from kstreams_py.graph.topology import Graph

FORMAT: Final = "kstreams_py cut 1"
"""The version of a cut's text."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a partition that a cut covers, in offsets.

    - `start`: the first offset that the partition had.
    - `settled`: all committed records below it are inside; a read of newer records begins here.
    - `end`: no record from here on is inside.
    """

    start: int
    settled: int
    end: int


@dataclass(frozen=True, slots=True)
class CutTopic:
    """A topic of a cut: the broker's id for it ("" if there is none), and its partitions in order."""

    topic_id: str
    partitions: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class CutInput:
    """How far a writer has committed an input: the next offset of each partition, 0 if none is committed."""

    topic: str
    topic_id: str
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutWriter:
    """A processor, or a pipeline, that writes some topics of a cut, with its committed offsets."""

    processor: str
    outputs: tuple[str, ...]
    inputs: tuple[CutInput, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Offsets of several topics that show each transaction of their writers whole.

    - `graph`: the name of the graph.
    - `topics`: the topics by name.
    - `writers`: the processors and pipelines whose records are judged by their steps.
    - `made`: seconds since 1970; records that were visible then are inside. None in a cut of an older release.
    """

    graph: str
    topics: Mapping[str, CutTopic]
    writers: tuple[CutWriter, ...]
    made: float | None = field(default=None, compare=False)

    def topic(self, name: str) -> CutTopic:
        """Returns a topic of the cut. Raises SettingsError if it has no such topic."""
        if name not in self.topics:
            hint = did_you_mean(name, self.topics) or f"it has {', '.join(sorted(self.topics))}"
            raise SettingsError(f"topic {name!r} is not in the cut of graph {self.graph!r}: {hint}")
        return self.topics[name]

    def is_settled(self, name: str) -> bool:
        """Returns whether no transaction was open on the topic, so that only offsets decide what is inside."""
        return all(each.settled == each.end for each in self.topic(name).partitions)

    def limits(self, name: str) -> dict[bytes, bytes]:
        """Returns the limits of writers' steps: a step's place (16 bytes) is inside if it is below the limit.

        The key is the first 8 bytes of a place, the value the last 8 bytes of the first place that is not inside.
        """
        return {
            hash_prefix(f"{self.graph}.{writer.processor}", each.topic, each.topic_id, number): pack_offset(offset)
            for writer in self.writers
            if name in writer.outputs
            for each in writer.inputs
            for number, offset in enumerate(each.offsets)
        }

    def spans(self, name: str, after: Cut | None) -> tuple[Span, ...]:
        """Returns the range of each partition, from `start` to `end`, with the records of this cut but not of `after`.

        Raises SettingsError if a topic is missing, or `after` is not an earlier cut of the same topic.
        """
        spans = self.topic(name).partitions
        if after is None:
            return spans
        earlier = after.topic(name)
        if earlier.topic_id != self.topic(name).topic_id:
            raise SettingsError(
                f"topic {name!r} was deleted and created again between the two cuts: read it from its start"
            )
        if len(earlier.partitions) > len(spans) or any(
            new.settled < old.end for new, old in zip(spans, earlier.partitions, strict=False)
        ):
            raise SettingsError(
                f"topic {name!r}: the cut to start from was not finished before the other one was begun: exchange "
                "them, or make the other one again"
            )
        begins = [each.settled for each in earlier.partitions]
        begins += [each.start for each in spans[len(begins) :]]
        return tuple(Span(begin, each.settled, each.end) for begin, each in zip(begins, spans, strict=True))

    def count(self, name: str, after: Cut | None) -> int:
        """Returns the number of offsets to read from a topic. Raises as spans() does."""
        return sum(max(span.end - span.start, 0) for span in self.spans(name, after))

    def encode(self) -> str:
        """Returns the cut as text: JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def decode(cls, text: str, name: str) -> Cut:
        """Reads a cut from its text. Raises UserMistake for any other text. `name`: the file's, for the message."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise ValueError(f"it has no {FORMAT!r} as its format")
            return _decode(content)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UserMistake(f"{name}: not a cut: {why}: make one with `kstreams cut`") from None


def _decode(content: Mapping[str, Any]) -> Cut:
    topics = {
        name: CutTopic(str(each["topic_id"]), tuple(Span(**span) for span in each["partitions"]))
        for name, each in content["topics"].items()
    }
    writers = tuple(
        CutWriter(
            writer["processor"],
            tuple(writer["outputs"]),
            tuple(CutInput(each["topic"], each["topic_id"], tuple(each["offsets"])) for each in writer["inputs"]),
        )
        for writer in content["writers"]
    )
    offsets = [at for each in topics.values() for s in each.partitions for at in (s.start, s.settled, s.end)]
    offsets += [at for writer in writers for each in writer.inputs for at in each.offsets]
    if wrong := [at for at in offsets if type(at) is not int or at < 0]:
        raise ValueError(f"{wrong[0]!r} is not an offset")
    made = content.get("made")
    return Cut(str(content["graph"]), topics, writers, None if made is None else float(made))


# Which processors a cut needs, and in which order.


def choose_topics(graph: Graph, names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the topics of a cut: the named ones, or all that are on the graph's own cluster.

    Raises UserMistake for a topic that the graph does not have.
    """
    if names is None:
        return tuple(sorted(name for name, topic in graph.topics.items() if not topic.cluster))
    for name in names:
        if name not in graph.topics:
            hint = did_you_mean(name, graph.topics) or f"it has {', '.join(sorted(graph.topics))}"
            raise UserMistake(f"graph {graph.name!r} has no topic {name!r}: {hint}")
    return tuple(sorted(set(names)))


@dataclass(frozen=True, slots=True)
class CommittingWriter:
    """A processor or a pipeline that commits offsets in the transactions of its records.

    - `inputs`: the topics of the offsets; for a pipeline the topic of its runs, which it creates itself.
    - `reads`: the topics of the records that it reads.
    """

    id: str
    inputs: tuple[str, ...]
    outputs: frozenset[str]
    reads: frozenset[str]
    processor: Processor | None = None


def _all_writers(graph: Graph) -> list[CommittingWriter]:
    """Returns all processors, and the pipelines that write topics."""
    found = list[CommittingWriter]()
    for each in graph.processors:
        inputs = tuple(topic.name for topic in each.inputs)
        found.append(CommittingWriter(each.id, inputs, frozenset(each.written), frozenset(inputs), each))
    for pipeline in graph.pipelines:
        if isinstance(pipeline.target, Topic):
            reads = frozenset(topic.name for topic in pipeline.inputs)
            outputs = frozenset({pipeline.target.name})
            found.append(CommittingWriter(pipeline.id, (runs_topic(pipeline.target.name),), outputs, reads))
    return found


def choose_writers(graph: Graph, names: Sequence[str]) -> list[CommittingWriter]:
    """Returns the writers whose records in these topics are judged by their steps.

    A reader of an output comes before its writer. Processors with a weaker guarantee write without transactions: for
    their records, only the ends decide. Raises UserMistake for a processor whose records do not show their
    transactions.
    """
    writers = [
        each
        for each in _readers_first(_all_writers(graph))
        if each.outputs & set(names) and (each.processor is None or each.processor.guarantee.is_transactional)
    ]
    for each in writers:
        if each.processor is not None and (why := why_not_cut(each.processor, names)):
            raise UserMistake(
                f"processor {each.id!r} writes {', '.join(sorted(each.outputs & set(names)))}, which cannot be "
                f"cut: {why}: name the other topics, or read these without a cut"
            )
    return writers


def _readers_first(writers: Sequence[CommittingWriter]) -> list[CommittingWriter]:
    """Returns each writer after the writers that read its outputs; in a cycle, in any order."""
    found: dict[str, CommittingWriter] = {}
    seen = set[str]()

    def visit(writer: CommittingWriter) -> None:
        if writer.id in seen:
            return
        seen.add(writer.id)
        for each in writers:
            if writer.outputs & each.reads:
                visit(each)
        found[writer.id] = writer

    for each in writers:
        visit(each)
    return list(found.values())
