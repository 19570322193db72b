"""A table of Delta Lake, which pipelines write."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from os import PathLike

from kstreams_py.graph.pipelines import Mode


@dataclass(frozen=True)
class Delta:
    """A table of Delta Lake, by its path. Needs delta-spark: `pip install 'kstreams_py[delta]'`.

    Rows and runs are in one commit of the table's log. It takes the rows of pipelines, not of processors.

    - `path`: a directory, or a URL of a file system that Spark can write; created if it is missing.
    """

    path: str

    def __init__(self, path: str | PathLike[str]) -> None:
        vars(self).update(path=str(path))

    @property
    def pipeline_modes(self) -> Collection[Mode]:
        """All modes."""
        return tuple(Mode)

    @property
    def checkpoint(self) -> str:
        """The path of a streaming pipeline's checkpoint: Delta ignores names that begin with `_`."""
        return f"{self.path}/_checkpoint"

    def __str__(self) -> str:
        return self.path
