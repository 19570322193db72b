"""The runs of a pipeline as its target stores them; the protocol of targets, and which targets a pipeline refuses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kstreams_py.errors import SettingsError
from kstreams_py.graph.pipelines import Pipeline

KEPT_RUNS: Final = 50
"""The number of runs that a target keeps."""

SECONDS_MAX: Final = 2**37
"""Times as far as this from 1970, in seconds, are refused: they may have no date in a calendar."""

_UNTYPED: Final = re.compile(r"(?:^|[<:,])void(?:[>,]|$)")
"""Spark's type of a literal NULL, also as a part of another type."""


class PipelineRun(NamedTuple):
    """A published run.

    - `cut`: the text of its cut.
    - `offsets`: the number of offsets that it read: records, and the markers and aborted records between them.
    - `rows`: the number of rows that the function returned.
    - `ended`: when it ended, in seconds since 1970.
    - `seconds`: the time from the beginning of the cut until the rows were staged.
    - `lag`: the longest time that a new record may have waited for the run, in seconds: from the previous cut until the
      rows were staged. None for a first run, and if the time of that cut is not known.
    - `plan`: Spark's plan of the rows as text; "" if the plan of the next run differs only in numbers.
    - `malformed`: the number of records that did not decode, and were left out.
    - `records`: the number of records for the function, including malformed ones; None if Spark did not report it.
    """

    number: int
    cut: str
    offsets: int
    rows: int
    ended: float
    seconds: float
    lag: float | None = None
    plan: str = ""
    malformed: int = 0
    records: int | None = None


class Published(NamedTuple):
    """The published state of a pipeline in its target; it changes together with the rows.

    - `owner`: the owner of the pipeline.
    - `columns`: the columns, each with the name of its type in Spark.
    - `runs`: the last runs, the newest at the end.
    """

    owner: str
    columns: Mapping[str, str]
    runs: tuple[PipelineRun, ...]

    @property
    def last(self) -> PipelineRun:
        return self.runs[-1]

    @classmethod
    def after(cls, previous: Published | None, owner: str, columns: Mapping[str, str], run: PipelineRun) -> Published:
        """Returns the published state after a run; the oldest runs are not kept."""
        if previous is None:
            return cls(owner, columns, (run,))
        *earlier, last = previous.runs
        last = last._replace(plan="" if _shape(last.plan) == _shape(run.plan) else last.plan)
        return cls(owner, columns, (*earlier, last, run)[-KEPT_RUNS:])

    def as_content(self) -> dict[str, Any]:
        """Returns the content for JSON that `decode_published` reads."""
        return {"owner": self.owner, "columns": dict(self.columns), "runs": [list(run) for run in self.runs]}


def _shape(plan: str) -> str:
    """Returns a plan without its numbers: the offsets of each run, Spark's ids, and Java's names of objects."""
    return re.sub(r"@[0-9a-f]+|\d+", "#", plan)


def decode_published(content: Mapping[str, Any]) -> Published:
    """Reads the content of `Published.as_content`. Raises ValueError for any other content."""
    try:
        runs = tuple(PipelineRun(*run) for run in content["runs"])
        found = Published(content["owner"], dict(content["columns"]), runs)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it has no runs of a pipeline: {error!r}") from error
    texts = [
        found.owner,
        *itertools.chain(*found.columns.items()),
        *(text for run in runs for text in (run.cut, run.plan)),
    ]
    counts = [each for run in runs for each in (run.number, run.offsets, run.rows, run.malformed, run.records or 0)]
    seconds = [each for run in runs for each in (run.ended, run.seconds, run.lag or 0.0)]
    is_whole = all(isinstance(each, str) for each in texts) and all(map(_is_count, counts))
    if not runs or not is_whole or not all(type(each) in (int, float) and abs(each) < SECONDS_MAX for each in seconds):
        raise ValueError("it has no runs of a pipeline")
    return found


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


class PipelineTarget(Protocol):
    """A pipeline's table. Every method raises SinkUnavailable (a topic: BrokerUnavailable) if it cannot be used now.

    Rows and published state are stored in one atomic step: others see a target with the rows and the state of one run.
    """

    def read(self) -> Published | None:
        """Reads the published state; None without any run. Raises SettingsError if the table is not a pipeline's."""

    def publish(self, rows: Any, previous: Published | None, finish: Callable[[int], Published]) -> Published:
        """Stores the rows of a DataFrame and the result of `finish` for their count. Returns that result.

        - `previous`: what `read` returned before the run.

        Raises StaleWriter if another run was published since, RowRefused for a key that is null or not unique, and
        SettingsError for columns that the table does not take; then nothing is stored.
        """

    def table(self, spark: Any) -> Any:
        """Returns the published rows as a DataFrame."""

    def reset(self) -> None:
        """Removes the rows and the runs: the next run is the first."""

    def close(self) -> None:
        """Frees its resources."""


def check_owner(pipeline: Pipeline, published: Published | None) -> None:
    """Raises SettingsError if the target is another pipeline's."""
    if published is not None and published.owner != pipeline.owner:
        raise SettingsError(
            f"{pipeline}: {pipeline.target} is the table of pipeline {published.owner!r}: name another target, or "
            "reset that pipeline first"
        )


def check_columns(
    pipeline: Pipeline, typed: Sequence[tuple[str, str]], published: Published | None, reset: str
) -> None:
    """Raises SettingsError for rows without the key, with columns that a target would lose, or with changed columns.

    - `typed`: the name of each column, and of its type in Spark.
    - `published`: the previous state, whose columns count if its rows stay.
    - `reset`: the command that resets the pipeline.
    """
    columns = dict(typed)
    if missing := [name for name in pipeline.key if name not in columns]:
        raise SettingsError(
            f"{pipeline}: its rows have no column {missing[0]!r} of the key, but {', '.join(columns)}: correct key=, "
            "or return the column"
        )
    if len({name.lower() for name in columns}) < len(typed):
        names = ", ".join(name for name, _ in typed)
        raise SettingsError(f"{pipeline}: two of its columns have the same name: {names}: rename one of them")
    if untyped := [name for name, kind in typed if _UNTYPED.search(kind)]:
        raise SettingsError(
            f"{pipeline}: column {untyped[0]!r} is {columns[untyped[0]]}: nulls without a type, which Delta Lake "
            "drops: cast them to one, as by lit(None).cast('string'), or leave the column out"
        )
    if collated := [name for name, kind in typed if " collate " in kind]:
        raise SettingsError(
            f"{pipeline}: column {collated[0]!r} is {columns[collated[0]]}, and Spark finds no rows in files with such "
            "columns: cast it to string"
        )
    if pipeline.mode.is_incremental and published is not None and dict(published.columns) != columns:
        raise SettingsError(
            f"{pipeline}: its rows have the columns {_shown(columns)}, and {pipeline.target} has "
            f"{_shown(published.columns)}: return the columns of the table, or begin again with `{reset}`"
        )


def _shown(columns: Mapping[str, str]) -> str:
    return f"({', '.join(f'{name} {kind}' for name, kind in columns.items())})"
