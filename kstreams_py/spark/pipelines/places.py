"""Where the runs of a pipeline end: the places of a stream's batches, and the ends of each run as text."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from kstreams_py.kafka.foreign_records import parse_json

EARLIEST: Final = -2
"""Spark's code for the first offset of a partition."""


class BatchPlace(NamedTuple):
    """A batch of a stream.

    - `stream`: Spark's id of the query, which is in its checkpoint.
    - `batch`: the number of the batch, from 0.
    - `entry`: the checkpoint's entry for the batch, with its offsets.
    - `topics`: the broker's ids of the inputs, by name.
    """

    stream: str
    batch: int
    entry: str
    topics: dict[str, str]

    def encode(self) -> str:
        """Returns the place as text: JSON."""
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str) -> BatchPlace | None:
        """Reads a place from its text; returns None for the cut of a run that was not a batch of a stream.

        Raises ValueError for any other text.
        """
        content = parse_json(text)
        if not isinstance(content, dict) or "stream" not in content:
            return None
        try:
            place = cls(**content)
            if [*map(type, place)] != [str, int, str, dict]:
                raise TypeError("its fields have other types")
            place.planned, place.count_offsets(None)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"{text[:80]!r} is not a batch of a stream: {error}") from None
        return place

    @property
    def planned(self) -> float:
        """The time at which Spark chose the batch's offsets, in seconds since 1970."""
        return float(json.loads(self.entry.splitlines()[1])["batchTimestampMs"]) / 1000

    def count_offsets(self, before: BatchPlace | None) -> int:
        """Returns the number of offsets between two batches; without an earlier batch, from offset 0."""
        return sum(self.all_ends()) - (sum(before.all_ends()) if before is not None else 0)

    def ends(self, topic: str) -> dict[int, int]:
        """Returns the next offset of each partition of a topic."""
        found = next((source[topic] for source in self._sources() if topic in source), {})
        return {int(partition): offset for partition, offset in found.items()}

    def starts(self, topic: str, following: BatchPlace) -> dict[int, int]:
        """Returns the offsets at which the following batch begins; new partitions begin at their first record."""
        return dict.fromkeys(following.ends(topic), EARLIEST) | self.ends(topic)

    def all_ends(self) -> list[int]:
        """Returns the next offset of every partition of all topics."""
        return [
            offset for source in self._sources() for partitions in source.values() for offset in partitions.values()
        ]

    def _sources(self) -> list[dict[str, dict[str, int]]]:
        """Returns the offsets of each source: the entry's lines after the version and the batch's metadata."""
        return [json.loads(line) for line in self.entry.splitlines()[2:] if line.startswith("{")]


def describe_cut(text: str) -> list[str]:
    """Returns a line for each topic of a stored cut: the offset before which each partition was read."""
    try:
        if (place := BatchPlace.decode(text)) is not None:
            ends = {name: list(place.ends(name).values()) for name in place.topics}
        else:
            topics = parse_json(text).get("topics", {})
            ends = {name: [span["end"] for span in topic["partitions"]] for name, topic in topics.items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        return [f"not known, as somebody else has written it: {error}"]
    return [f"{name}: {', '.join(map(str, offsets))}" for name, offsets in sorted(ends.items())]
