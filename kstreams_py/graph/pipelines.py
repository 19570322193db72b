"""Pipeline and its modes: a function of Spark DataFrames over topics, whose table is kept in a target."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypedDict, cast

from kstreams_py.errors import GraphError, did_you_mean
from kstreams_py.graph.checks import check_options
from kstreams_py.graph.declarations import Topic

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_INTERVAL: Final = re.compile(rf"([1-9]\d*) ({'|'.join(_UNITS)})s?")


class Mode(StrEnum):
    """What a run reads, and what it does with the rows of earlier runs."""

    COMPLETE = "complete"
    """All records of the topics; the rows replace the table."""
    APPEND = "append"
    """The records since the last run; the rows are added to the table."""
    UPSERT = "upsert"
    """The records since the last run; a row replaces the one with the same key."""

    @property
    def is_incremental(self) -> bool:
        """Whether a run reads only new records, not all of history."""
        return self is not Mode.COMPLETE


FAIL, DROP = "fail", "drop"
"""A record that does not decode fails the run, or is left out."""

TOPIC_MODES: Final = (Mode.APPEND, Mode.UPSERT)
"""The modes of a pipeline into a topic, whose contents are never replaced as a whole."""


RUNS_SETTINGS: Final = {"cleanup.policy": "compact"}


class SparkNeeds(NamedTuple):
    """What Spark needs to write tables of one kind.

    - `jars`: returns the Maven coordinates of its jars, besides those for Kafka. Raises MissingSoftware.
    - `conf`: the configuration of its session, besides the jars.
    - `makes_files`: each task of Spark writes a file of its own.
    """

    jars: Callable[[], Sequence[str]] = tuple
    conf: Mapping[str, str] = {}
    makes_files: bool = False


class Table(Protocol):
    """The declaration of a table elsewhere. Its `str` names the table without credentials."""

    spark_needs: ClassVar[SparkNeeds]

    @property
    def pipeline_modes(self) -> Collection[Mode]:
        """The modes of the pipelines whose rows it takes."""


class PipelineOptions(TypedDict, total=False):
    """The options of a pipeline: `Graph.pipeline` describes them."""

    id: str
    mode: Mode | str
    key: Sequence[str]
    every: str
    streaming: bool | str
    malformed: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A function of DataFrames with its input topics, and the target that keeps its table.

    - `owner`: the names of the graph and the pipeline, joined by a dot; the owner of the target.
    - `function`: takes a DataFrame of each input, and returns one.
    - `target`: a table elsewhere, or a topic of the graph.
    - `key`: the columns that tell rows apart; none where rows are only added.
    - `every`: seconds between the starts of two consecutive runs.
    - `checkpoint`: the directory where Spark keeps the state of a stream; None for a pipeline that runs in batches.
    - `drops_malformed`: records that do not decode are left out, counted and warned of; otherwise they fail the run.
    """

    id: str
    owner: str
    inputs: tuple[Topic, ...]
    function: Callable[..., Any]
    target: Table | Topic
    mode: Mode
    key: tuple[str, ...]
    every: int
    checkpoint: str | None = None
    drops_malformed: bool = True

    def __str__(self) -> str:
        return f"pipeline {self.id!r}"

    @property
    def spark_needs(self) -> SparkNeeds:
        """What Spark needs to write the target; nothing for a topic."""
        return SparkNeeds() if isinstance(self.target, Topic) else self.target.spark_needs


def make_pipeline(
    name: str,
    owner: str,
    inputs: tuple[Topic, ...],
    function: Callable[..., Any],
    target: object,
    options: PipelineOptions,
) -> Pipeline:
    """Makes a pipeline from its declaration. Raises GraphError if the declaration is wrong."""
    what = f"pipeline {name!r}"
    check_options(what, options, PipelineOptions)
    check_function(what, function, inputs)
    mode, key = choose_mode(what, options.get("mode", Mode.COMPLETE), options.get("key", ()))
    table = check_target(what, target, mode)
    if elsewhere := next((topic for topic in inputs if topic.cluster), None):
        raise GraphError(
            f"{what}: topic {elsewhere.name!r} is on cluster {elsewhere.cluster!r}: name one of the graph's own"
        )
    if isinstance(table, Topic):
        check_topic_target(what, table, inputs, key)
    every = parse_interval(what, options.get("every", "1 minute"))
    checkpoint = choose_checkpoint(what, options.get("streaming", False), table)
    if (malformed := options.get("malformed", DROP)) not in (FAIL, DROP):
        raise GraphError(f"{what}: malformed={malformed!r} is not known: choose {FAIL!r} or {DROP!r}")
    return Pipeline(name, owner, inputs, function, table, mode, key, every, checkpoint, malformed == DROP)


def check_function(what: str, function: Callable[..., Any], inputs: Sequence[Topic]) -> None:
    """Raises GraphError if the function does not take one DataFrame for each input."""
    names = [f"df_{number}" for number in range(1, len(inputs) + 1)] if len(inputs) > 1 else ["df"]
    signature = inspect.signature(function)
    try:
        signature.bind(*names)
    except TypeError:
        name = getattr(function, "__name__", "function")
        raise GraphError(f"{what}: its function is {name}{signature}: write {name}({', '.join(names)})") from None


def choose_mode(what: str, mode: str, key: Sequence[str]) -> tuple[Mode, tuple[str, ...]]:
    """Returns the mode and the key columns of these options. Raises GraphError."""
    if mode not in tuple(Mode):
        close = did_you_mean(str(mode), Mode) or f"choose {', '.join(Mode)}"
        raise GraphError(f"{what}: mode {mode!r} is not known: {close}")
    if isinstance(key, str):
        raise GraphError(f"{what}: key={key!r} is a string: write key=[{key!r}]")
    columns = tuple(key)
    if twice := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise GraphError(f"{what}: key has column {twice[0]!r} twice: name it once")
    if mode == Mode.UPSERT and not columns:
        raise GraphError(f"{what} is an upsert without a key: name the columns that tell rows apart, key=[...]")
    return Mode(mode), columns


def check_target(what: str, target: object, mode: Mode) -> Table | Topic:
    """Returns the target of a pipeline. Raises GraphError if it is not a target, or does not take the mode."""
    if isinstance(target, type) or not (isinstance(target, Topic) or hasattr(target, "pipeline_modes")):
        raise GraphError(
            f"{what}: to={target!r} is not a target of a pipeline: give ks.Parquet(...) or another table of "
            "kstreams_py.sinks, or a topic"
        )
    modes: Collection[Mode] = TOPIC_MODES if isinstance(target, Topic) else target.pipeline_modes
    if mode not in modes:
        raise GraphError(f"{what} is {mode}, which {target} does not take: choose {' or '.join(map(str, modes))}")
    return cast(Table | Topic, target)


def choose_checkpoint(what: str, streaming: bool | str, target: Table | Topic) -> str | None:
    """Returns the directory of the checkpoint; None for a pipeline that is not a stream. Raises GraphError."""
    if streaming is True:
        if (directory := getattr(target, "checkpoint", None)) is None:
            raise GraphError(
                f"{what}: {target} has no place for the checkpoint of a stream: give its directory, "
                "streaming='checkpoints/...'"
            )
        return str(directory)
    return streaming or None


def check_topic_target(what: str, target: Topic, inputs: Sequence[Topic], key: Sequence[str]) -> None:
    """Raises GraphError for a topic that the pipeline cannot write to, or a key of several columns."""
    if target in inputs:
        raise GraphError(f"{what} reads {target.name!r} and writes to it: give it another topic")
    if target.cluster:
        raise GraphError(f"{what}: topic {target.name!r} is on cluster {target.cluster!r}: name one of the graph's own")
    if len(key) > 1:
        raise GraphError(
            f"{what}: the key of a record in {target.name!r} is one column, and key= has {', '.join(key)}: return a "
            "column that is made of them, and name that"
        )


def parse_interval(what: str, text: str) -> int:
    """Returns the seconds of an interval in Spark's notation: "1 minute", "30 seconds". Raises GraphError."""
    found = _INTERVAL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise GraphError(
            f"{what}: every={text!r} is not an interval: write a number and {', '.join(_UNITS)}: '1 minute'"
        )
    return int(found[1]) * _UNITS[found[2]]
