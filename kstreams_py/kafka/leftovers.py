"""Transactions that an earlier producer of the same transactional id left open, and that nobody will end.

A coordinator may count a transaction as ended whose marker is missing in a partition (docs/exactly-once.md, 14). There
it is open for ever, and the marker of the next transaction of the same producer id ends it: a commit makes aborted
outputs visible, which are made once more. So nothing is written before a person has ended it as its coordinator did.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kstreams_py.errors import Retriable
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.kafka.transactions import find_command
from kstreams_py.records import TopicPartition


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Looks for what a transactional id has left open.

    - `options`: those of a command that name the cluster, see place_options().
    - `partitions`: those that it writes.
    - `group`: whose offsets it commits; "" for none.
    """

    cluster: Cluster
    options: str
    transactional_id: str
    partitions: Collection[TopicPartition]
    group: str

    def require_none(self) -> None:
        """Raises Retriable while one is open, or without an answer. The producer must have been started."""
        found = self.cluster.hanging(self.transactional_id, self.partitions, self.group)
        if not found:
            return
        places = ", ".join(f"{tp} from offset {each.start}" for tp, each in found.items())
        find = find_command(self.options, {tp.topic for tp in found})
        raise Retriable(
            f"a transaction of {self.transactional_id} is open on {places}, its coordinator will not end it, and the "
            "next one would commit what it has written: nothing is written until you end it by the commands that "
            f"`{find}` prints"
        )
