"""The sources of a graph as their claims show them: inputs under way, and refused inputs, which can be read again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kstreams_py.errors import KStreamsError, SettingsError, did_you_mean
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.names import reader_of
from kstreams_py.graph.source import InspectedSource, SourceStatus
from kstreams_py.graph.topology import Graph
from kstreams_py.operations.doctor.findings import SourceFact


def sources_of(graph: Graph) -> dict[str, Channel]:
    """Returns the channels of a graph that a source fills, by name."""
    return {name: channel for name, channel in graph.channels.items() if channel.source is not None}


def inspect_sources(graph: Graph, limit: int) -> dict[str, SourceFact]:
    """Returns the status of the inputs of each source. `limit`: the maximum number of refused inputs shown for each."""
    return {name: _inspect(graph, channel, limit) for name, channel in sources_of(graph).items()}


def _inspect(graph: Graph, channel: Channel, limit: int) -> SourceFact:
    source = channel.source
    if not isinstance(source, InspectedSource):
        return SourceFact(str(source))
    try:
        return SourceFact(str(source), source.inspect(reader_of(graph.name, channel.name), limit))
    except KStreamsError as error:
        return SourceFact(str(source), why=str(error))


class RefusedInputs:
    """The refused inputs of one source of a graph."""

    def __init__(self, graph: Graph, name: str | None) -> None:
        """Makes no connection. Raises SettingsError if there is no such source, or if it keeps no inputs.

        - `name`: None for the only source.
        """
        found = sources_of(graph)
        if not found:
            raise SettingsError(f"graph {graph.name!r} has no source: its topics have dead letters instead")
        if name is None and len(found) > 1:
            raise SettingsError(f"graph {graph.name!r} has several sources: add --source {' or '.join(found)}")
        name = next(iter(found)) if name is None else name
        if name not in found:
            known = did_you_mean(name, found) or f"it has {', '.join(found)}"
            raise SettingsError(f"graph {graph.name!r} has no source {name!r}: {known}")
        source = found[name].source
        if not isinstance(source, InspectedSource):
            raise SettingsError(f"source {name!r} ({source}) keeps no inputs: send them again there")
        self.name, self._source, self._reader = name, source, reader_of(graph.name, name)

    def inspect(self, limit: int) -> SourceStatus:
        """Returns the inputs' status, with up to `limit` refused ones. Raises SourceUnavailable and SettingsError."""
        return self._source.inspect(self._reader, limit)

    def retry(self, keys: Collection[str] | None) -> int:
        """Lets refused inputs be read again; returns how many: see InspectedSource.retry."""
        return self._source.retry(self._reader, keys)


def show_counts(status: SourceStatus) -> str:
    """Returns the counts of a status as text."""
    parts = [f"{status.claimed:,} under way"]
    parts += [f"{status.claimed_suspects:,} of these after several deaths"] if status.claimed_suspects else []
    parts += [f"{status.abandoned:,} of workers that have ended"] if status.abandoned else []
    parts += [f"{status.free:,} given back"] if status.free else []
    parts += [f"{status.suspects:,} of these to be read by themselves"] if status.suspects else []
    return ", ".join([*parts, f"{status.refused:,} refused"])


def as_fields(name: str, fact: SourceFact) -> dict[str, Any]:
    """Returns a source as fields for JSON; its counts are None if it could not be inspected."""
    status = fact.status
    counts = ("claimed", "abandoned", "free", "suspects", "claimed_suspects", "refused")
    return {
        "source": name,
        "medium": fact.medium,
        "why": fact.why or None,
        **{each: None if status is None else getattr(status, each) for each in counts},
        "refused_inputs": [each._asdict() for each in (() if status is None else status.shown)],
    }
