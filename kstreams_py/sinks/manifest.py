"""The manifest of a directory of Parquet files: which files are published, and which have to be merged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kstreams_py.records import Positions, TopicPartition

VERSION: Final = 1

MERGED_AT_ONCE: Final = 16
"""How many files of one size are merged into one: a row is rewritten once for each power of this number."""

LARGE_ROWS: Final = 1_000_000
"""Files with at least this many rows are not merged."""


class DataFile(NamedTuple):
    """A file in the directory of the data.

    - `digest`: the digest of the file's end, see digest_end(); "" in a manifest of an earlier release.
    """

    name: str
    rows: int
    digest: str = ""


class Manifest(NamedTuple):
    """The published state of a directory.

    - `columns`: the columns, each with the name of its type.
    - `positions`: the next offsets, by consumer.
    - `files`: the files with the rows of all records below these offsets.
    - `pipeline`: the owner and the runs of a pipeline's table (spark/pipelines/runs.py); None for a sink's.
    """

    columns: Mapping[str, str]
    positions: Mapping[str, Positions] = {}
    files: tuple[DataFile, ...] = ()
    pipeline: Mapping[str, Any] | None = None

    def with_write(self, consumer: str, positions: Positions, added: Sequence[DataFile]) -> Manifest:
        """Returns the manifest after a write: the consumer's other positions stay."""
        of_consumer = {**self.positions.get(consumer, {}), **positions}
        return self._replace(positions={**self.positions, consumer: of_consumer}, files=(*self.files, *added))

    def with_merge(self, merged: Sequence[DataFile], result: DataFile) -> Manifest:
        """Returns the manifest with one file in place of several."""
        return self._replace(files=(*(file for file in self.files if file not in merged), result))


def encode_manifest(manifest: Manifest) -> bytes:
    content = {
        "version": VERSION,
        "columns": dict(manifest.columns),
        "positions": {
            consumer: [[*tp, offset] for tp, offset in sorted(positions.items())]
            for consumer, positions in sorted(manifest.positions.items())
        },
        "files": [[file.name, file.rows] for file in manifest.files],
        # not in the entries of `files`: earlier releases ignore the digests here
        "digests": {file.name: file.digest for file in manifest.files if file.digest},
        **({} if manifest.pipeline is None else {"pipeline": manifest.pipeline}),
    }
    return json.dumps(content, indent=1).encode()


def decode_manifest(content: bytes) -> Manifest:
    """Parses a manifest. Raises ValueError if it is not a manifest of this version."""
    try:
        read = json.loads(content)
        if read["version"] != VERSION:
            raise ValueError(f"it has version {read['version']}, and this release reads version {VERSION}")
        positions = {
            consumer: {TopicPartition(topic, partition): offset for topic, partition, offset in stored}
            for consumer, stored in read["positions"].items()
        }
        digests = read.get("digests", {})
        files = tuple(DataFile(name, rows, digests.get(name, "")) for name, rows in read["files"])
        return Manifest(read["columns"], positions, files, read.get("pipeline"))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a manifest: {error!r}") from error


def choose_merged(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Returns the files to be merged into one: all files of the smallest size that has enough; none if no size has.

    So a table has few files: for each power of MERGED_AT_ONCE fewer than MERGED_AT_ONCE files, besides the large
    ones.
    """
    sizes: dict[int, list[DataFile]] = {}
    for file in files:
        if file.rows < LARGE_ROWS:
            sizes.setdefault(_power(file.rows), []).append(file)
    return next((tuple(same) for _, same in sorted(sizes.items()) if len(same) >= MERGED_AT_ONCE), ())


def _power(rows: int) -> int:
    power = 0
    while rows >= MERGED_AT_ONCE:
        rows //= MERGED_AT_ONCE
        power += 1
    return power
