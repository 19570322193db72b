"""Forgets a processor that the graph no longer declares: deletes its group, and the records of its beginnings."""

from __future__ import annotations

from kstreams_py.errors import BrokerUnavailable, KStreamsError, UserMistake
from kstreams_py.graph.names import id_of, recover_id
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.contracts import Output, Producer
from kstreams_py.operations.records.send import IDEMPOTENT
from kstreams_py.operations.recover.positions import check_no_members
from kstreams_py.operations.recover.status import find_undeclared
from kstreams_py.operations.recover.task_status import UndeclaredProcessor
from kstreams_py.operations.topics import TopicDeletion
from kstreams_py.processing.beginning import forgotten_processor
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.steps.environment import Environment


class ForgottenProcessor:
    """A processor that is about to be forgotten."""

    def __init__(self, graph: Graph, name: str, environment: Environment, admin: GroupAdmin, processor: str) -> None:
        """Finds the processor, and changes nothing.

        - `name`: the graph's name on the command line, for commands in messages.

        Raises UserMistake if the graph declares the processor or never had it, if its group has members, or if it still
        has topics: only the records of its beginnings tell which topics these are.
        """
        self._graph, self._name = graph, name
        self._environment, self._admin = environment, admin
        gone = {each.processor: each for each in find_undeclared(graph, environment, admin)}
        processor = id_of(graph.name, processor, {*gone, *(each.id for each in graph.processors)})
        if processor in {each.id for each in graph.processors}:
            raise UserMistake(f"graph {graph.name!r} declares processor {processor!r}: remove it from the graph first")
        if processor not in gone:
            known = ", ".join(gone) or "none"
            raise UserMistake(
                f"graph {graph.name!r} had no processor {processor!r}: those that it no longer declares: {known}"
            )
        self.found: UndeclaredProcessor = gone[processor]
        if processor in {each.id for each in graph.pipelines}:
            raise UserMistake(f"{processor!r} is a pipeline now, which has the same group: there is nothing to forget")
        if self.found.unseen:
            raise UserMistake(
                f"the positions of {processor!r} cannot be shown, and are not deleted: {self.found.unseen}"
            )
        self._check_members()
        if topics := TopicDeletion(graph, name, environment, admin).plan_processor(processor):
            raise UserMistake(
                f"{processor}: its topics are left ({', '.join(each.name for each in topics)}): delete them first: "
                f"`kstreams topics delete {name} --processor {processor}`"
            )

    def forget(self) -> None:
        """Deletes the group, then the records. Raises UserMistake if a worker has started since."""
        cluster, own_id = self._environment.cluster, recover_id(self._graph.name)
        attempts = Attempts(own_id, own_id, self._environment.sleep)
        records = forgotten_processor(cluster, self._graph.beginnings, self.found.processor)
        producer = cluster.producer(IDEMPOTENT, own_id)
        try:
            self._check_members()
            self._admin.delete(self.found.group)
            self._write(producer, records, attempts)
        finally:
            producer.drop()

    def _write(self, producer: Producer, records: list[Output], attempts: Attempts) -> None:
        try:
            attempts.call(lambda: producer.write(records))
            attempts.call(producer.flush)
        except KStreamsError as error:
            raise BrokerUnavailable(
                f"group {self.found.group!r} is deleted, but the records of its beginnings are not ({error}): run the "
                "command again"
            ) from None

    def _check_members(self) -> None:
        check_no_members(self._admin.describe([self.found.group]), self._name, ())
