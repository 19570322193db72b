"""Finds transactions that an earlier producer of the same transactional id left open and that no producer will end.

A coordinator may count a transaction as ended although its marker is missing in a partition (docs/exactly-once.md, 14).
There, the transaction stays open until the next marker of the same producer id ends it. If that marker is a commit,
aborted outputs become visible, although they are written again. So nothing is written until a person has ended the
transaction as its coordinator did.
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
    """Looks for transactions that a transactional id has left open.

    - `options`: the options of a command that name the cluster; see place_options().
    - `partitions`: the partitions that the transactional id's producer writes.
    - `group`: the group whose offsets the producer commits; "" if there is none.
    """

    cluster: Cluster
    options: str
    transactional_id: str
    partitions: Collection[TopicPartition]
    group: str

    def require_none(self) -> None:
        """Raises Retriable while such a transaction is open, or without an answer.

        Call it once the producer has started.
        """
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
