"""The guarantees and durabilities that a graph declares.

================  =======================  =======  ==========  ===========================  ==========================
guarantee         offsets are committed    lost     duplicated  producer                     what it costs
================  =======================  =======  ==========  ===========================  ==========================
`exactly_once`    with the outputs, in     never    never       transactional, idempotent,   a transaction every 100 ms;
                  one transaction                               acks=all                     readers wait for its commit
`at_least_once`   after the outputs are    never    see below   idempotent where acks=all,   a flush and an offset
                  acknowledged                                  retries                      commit every 100 ms
`at_most_once`    before the functions     after a  never       idempotent and retries, or   an offset commit before
                  run                      crash                acks=0 and no retries        each batch of records
================  =======================  =======  ==========  ===========================  ==========================

`at_least_once` repeats the steps since the last commit after a crash, after an output that was refused or failed, and
when partitions are revoked before their outputs are acknowledged.

A step that is run again (retry.py) keeps its guarantee. `at_most_once` commits the step's offset before each attempt,
and takes the offset back while the step waits: the function may be called again, but only after an attempt that wrote
nothing.

`Durability` is a separate choice: which failures an acknowledged write survives. Kafka's transactional and idempotent
producers need acks=all. So `exactly_once` requires `committed`, and `at_most_once` excludes `leader`: without a
producer id, the client resends a batch that its broker may have written. With `leader` or `none`, outputs are lost
if a broker fails before its followers have them; nothing else changes in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Guarantee(StrEnum):
    """What a crash may do to a record: see the table above."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"

    @property
    def is_transactional(self) -> bool:
        """Whether outputs and offsets are committed in one transaction."""
        return RULES[self].transactional

    @property
    def commits_first(self) -> bool:
        """Whether offsets are committed before the functions run, so that a crash repeats no step."""
        return RULES[self].commits_first


class Durability(StrEnum):
    """Whose acknowledgement a write waits for: all in-sync replicas, the leader alone, or none."""

    COMMITTED = "committed"
    LEADER = "leader"
    NONE = "none"

    @property
    def acks(self) -> int:
        """The producer's `acks`: -1 (all), 1 or 0."""
        return {"committed": -1, "leader": 1, "none": 0}[self]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for declarations with one guarantee.

    - `refused`: durabilities that the guarantee excludes, each with the reason and the remedy.
    - `transactional`, `commits_first`: see Guarantee.
    - `journals_choices`: the choices of an alts are saved in the processor's own topic before the functions run.
    """

    refused: Mapping[Durability, str] = field(default_factory=dict)
    transactional: bool = False
    commits_first: bool = False
    journals_choices: bool = False


_NO_TRANSACTIONS = (
    "transactions need the acknowledgement of all in-sync replicas: choose durability committed, or another guarantee"
)

RULES: Final[Mapping[Guarantee, Rules]] = {
    Guarantee.EXACTLY_ONCE: Rules(
        refused={Durability.LEADER: _NO_TRANSACTIONS, Durability.NONE: _NO_TRANSACTIONS},
        transactional=True,
        journals_choices=True,
    ),
    Guarantee.AT_LEAST_ONCE: Rules(),
    Guarantee.AT_MOST_ONCE: Rules(
        refused={
            Durability.LEADER: "a batch is resent if its broker fails, though it may be stored already, and the copy "
            "is dropped only with acks=all: choose durability committed or none, or another guarantee"
        },
        commits_first=True,
    ),
}
