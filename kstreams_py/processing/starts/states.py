"""Checks the states of a processor as its next start does; reads the ends of the changelog and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kstreams_py.errors import NotRestored
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.runners.opening import name_state, open_stores
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.state.changelog import Changelog
from kstreams_py.state.keyed import POSITIONS_KEY, MemoryBase
from kstreams_py.state.reading import commands_of
from kstreams_py.state.stores import lost_changelog
from kstreams_py.steps.environment import Environment


class RestoredStates:
    """The states that the next start would restore, without their values."""

    def __init__(
        self, graph: Graph, processor: Processor, environment: Environment, topics: Mapping[str, TopicInfo]
    ) -> None:
        """Makes no request, except for the schemas of the state.

        `topics` has the inputs of the processor, and its changelog if that exists.
        """
        self._cluster = environment.cluster
        self._processor = processor
        self._changelog = changelog_of(graph.name, processor) or ""
        self._name, self._commands = name_state(processor), partial(commands_of, graph, processor)
        self._exists = self._changelog in topics
        self._stores = open_stores(graph, processor, environment, topics, self._open_base)

    def check(
        self, number: int, committed: Positions, partitions: list[TopicPartition], beginning: Beginning | None
    ) -> bool:
        """Returns whether the state of a task begins empty although the task has read records.

        - `number`: the partition number of the task.
        - `committed`: the committed offsets of its inputs.
        - `partitions`: its partitions of the inputs.
        - `beginning`: the Beginning of its processor; None if the graph was never started.

        Raises the error that ends the start, InputLost or TopicError; NotRestored if the start waits.
        """
        if self._stores is None:
            return False
        begun = beginning.states_begun(self._changelog) if beginning is not None else {}
        if not self._exists:  # the start creates it, and finds it empty
            has_read = any(committed.values())
            if has_read and number in begun:
                raise lost_changelog(
                    self._name, Changelog(self._changelog, ""), begun[number], committed, self._commands()
                )
            return has_read
        waits = ""
        while True:
            try:
                self._stores.restore(committed, partitions)
                break
            except NotRestored as error:  # a part is restored, or offsets must be read again: a start repeats it, too
                if str(error) == waits:
                    raise
                waits = str(error)
        self._stores.check_begun(begun)
        return number in self._stores.empty

    def close(self) -> None:
        """Frees the stores."""
        if self._stores is not None:
            self._stores.close()

    def _open_base(self, number: int, changelog_id: str) -> MemoryBase:  # noqa: ARG002, as open_stores calls it
        """Returns a store that has read its changelog up to the newest record, if that has the positions.

        In each transaction of a worker, the last record has them. The values before it do not affect a start. Without
        the oldest records, a state in memory is lost; a state on disk is lost only if its directory lacks them.
        """
        base, tp = MemoryBase(), TopicPartition(self._changelog, number)
        assert self._processor.state is not None
        is_whole = self._processor.state.on_disk or not self._cluster.starts([tp])[tp]
        newest = self._cluster.newest(tp) if is_whole else None
        if newest is not None and newest.key() == POSITIONS_KEY and (value := newest.value()) is not None:
            base.apply({POSITIONS_KEY: value})
            base.note(newest.offset())
        return base
