"""Finds hanging transactions, and ends one on a partition with the marker that its coordinator did not write."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import BrokerUnavailable, KStreamsError, TopicError, UserMistake
from kstreams_py.kafka.groups import POSITIONS_TOPIC
from kstreams_py.kafka.transaction_admin import Looked, TransactionAdmin
from kstreams_py.kafka.transactions import OpenTransaction, command
from kstreams_py.operations.transactions.hanging import (
    NOT_SHOWN,
    CommitDecision,
    FoundTransaction,
    decide,
    headline,
    hold,
    is_found,
    order,
)
from kstreams_py.records import TopicPartition

DEFAULT_LIMIT: Final = 900.0
"""Kafka's default for transaction.max.timeout.ms, in seconds: used if the brokers do not show theirs."""

UNCHANGED: Final = "nothing was changed"


@dataclass(frozen=True, slots=True)
class Findings:
    """The transactions that were found, in the order in which to end them, and why some partitions were refused."""

    found: list[FoundTransaction]
    refused: Mapping[TopicPartition, KStreamsError]


class Transactions:
    """Finds and ends open transactions of a cluster."""

    def __init__(self, admin: TransactionAdmin) -> None:
        """Makes no request."""
        self._admin = admin

    def find(self, topics: Collection[str] | None, limit: float | None) -> Findings:
        """Finds transactions that hang or are older than a limit.

        - `topics`: the topics to look at; None for all that this user may see.
        - `limit`: seconds; None for transaction.max.timeout.ms.
        """
        limit = self._longest() if limit is None else limit
        looked = self._look_everywhere(self._admin.partitions(topics))
        now = time.time()
        found = [
            self._examine(tp, each, transactions)
            for tp, transactions in looked.found.items()
            for each in transactions
            if is_found(each, limit, now)
        ]
        return Findings(order(found), looked.refused)

    def count_partitions(self, topics: Collection[str]) -> dict[str, int]:
        """Returns the number of partitions of each topic. Raises TopicError if one of them does not exist."""
        counts = self._admin.partitions(topics)
        if missing := sorted(set(topics) - counts.keys()):
            raise TopicError(f"topic {missing[0]!r} does not exist: correct the name or --bootstrap-servers")
        return counts

    def select(self, partition: TopicPartition, start: int, verb: str) -> FoundTransaction:
        """Returns the open transaction that begins at an offset of a partition, if `verb` may end it. Changes nothing.

        Raises TopicError or UserMistake if there is none, if its coordinator will end it, if only the other verb may
        end it, or if its producer's outputs must be ended first. Raises BrokerUnavailable if such outputs may be open.
        """
        count = self.count_partitions([partition.topic])[partition.topic]
        if partition.partition >= count:
            raise UserMistake(
                f"topic {partition.topic!r} has no partition {partition.partition}: it has {count}, numbered from 0"
            )
        opened = self._look(partition)
        chosen = next((each for each in opened if each.start == start), None)
        if chosen is None:
            there = ", ".join(str(each.start) for each in opened) or "none"
            raise UserMistake(
                f"no transaction is open on {partition} from offset {start} (open from: {there}): {UNCHANGED}; it may "
                "have ended since: see `kstreams transactions find-hanging`"
            )
        self._check_it_hangs(partition, chosen)
        found = self._examine(partition, chosen, opened)
        self._check_verb(found, verb)
        if partition.topic == POSITIONS_TOPIC:
            self._check_outputs(chosen)
        return found

    def end(self, found: FoundTransaction, verb: str) -> None:
        """Looks again at a transaction that `select` returned, ends it, and returns once it is no longer open.

        Raises UserMistake if it has changed since; then it writes nothing.
        """
        now = next((each for each in self._look(found.partition) if each.identity == found.transaction.identity), None)
        if now is None or now.hangs != found.transaction.hangs:
            raise UserMistake(f"the transaction on {found.partition} has changed since it was shown: {UNCHANGED}")
        self._admin.write_marker(found.partition, now, commits=verb == "commit")
        if any(each.identity == now.identity for each in self._look(found.partition)):
            raise BrokerUnavailable(
                f"the marker was written to {found.partition}, and the transaction is still open: see the broker's log"
            )

    def _look(self, partition: TopicPartition) -> tuple[OpenTransaction, ...]:
        looked = self._admin.look([partition])
        if partition in looked.refused:
            raise BrokerUnavailable(f"{partition} cannot be looked at: {looked.refused[partition]}; {UNCHANGED}")
        return looked.found[partition]

    def _look_everywhere(self, counts: Mapping[str, int]) -> Looked:
        return self._admin.look([TopicPartition(t, number) for t, count in counts.items() for number in range(count)])

    def _longest(self) -> float:
        return self._admin.max_timeout() or DEFAULT_LIMIT

    def _check_it_hangs(self, partition: TopicPartition, transaction: OpenTransaction) -> None:
        now = time.time()
        named = headline(FoundTransaction(partition, transaction), now)
        if transaction.hangs is False:
            raise UserMistake(
                f"{named}: {UNCHANGED}; start its producer again, which ends it, or wait for its time-out"
            )
        if transaction.hangs is None and transaction.age(now) < (longest := self._longest()):
            raise UserMistake(
                f"{named}; its producer may be alive: {UNCHANGED}; grant this "
                f"user DESCRIBE on transactional ids, or wait until it is {longest:.0f} s old"
            )

    def _check_verb(self, found: FoundTransaction, verb: str) -> None:
        other = command(found.verb, found.partition, found.transaction.start)
        if found.verb == verb:
            return
        if verb == "abort":
            raise UserMistake(
                f"the transaction on {found.partition} was committed by its coordinator: an abort would discard a part "
                f"of it, so {UNCHANGED}; `{other}` completes it"
            )
        raise UserMistake(
            f"the transaction on {found.partition} is not known to be committed "
            f"({found.decision.why or 'its coordinator has aborted it'}): {UNCHANGED}; `{other}` discards it"
        )

    def _check_outputs(self, transaction: OpenTransaction) -> None:
        """Checks that the producer has no open transaction on another topic.

        The next transaction of its transactional id would commit it (docs/exactly-once.md, 14). Raises UserMistake
        if it has one, BrokerUnavailable if it may have one.
        """
        counts = self._admin.partitions()
        counts.pop(POSITIONS_TOPIC, None)
        looked = self._look_everywhere(counts)
        first = [
            self._examine(tp, each, opened)
            for tp, opened in sorted(looked.found.items())
            for each in opened
            if each.producer_id == transaction.producer_id
        ]
        if first:
            commands = "".join(
                f"\n  {command(each.verb, each.partition, each.transaction.start)}" for each in order(first)
            )
            raise UserMistake(
                f"producer {transaction.producer_id} has outputs open too, which its next transaction would commit: "
                f"{UNCHANGED}; end these first:{commands}"
            )
        for tp, reason in looked.refused.items():
            raise BrokerUnavailable(
                f"{tp} cannot be looked at: {reason}; if producer {transaction.producer_id} has outputs open there, "
                f"its next transaction would commit them: {UNCHANGED}"
            )

    def _examine(
        self, partition: TopicPartition, transaction: OpenTransaction, opened: Collection[OpenTransaction]
    ) -> FoundTransaction:
        """Returns a transaction; unless it ends by itself, with what it holds back and whether it was committed."""
        if transaction.hangs is False:
            return FoundTransaction(partition, transaction)
        log = self._admin.read(partition, transaction.start, transaction.producer_id)
        held = hold(log, transaction, [each for each in opened if each is not transaction])
        return FoundTransaction(partition, transaction, held, self._decide(partition, transaction))

    def _decide(self, partition: TopicPartition, transaction: OpenTransaction) -> CommitDecision:
        if not transaction.transactional_id:
            return CommitDecision(None, NOT_SHOWN)
        try:
            decisions, is_complete = self._admin.decisions(transaction.transactional_id)
        except KStreamsError as error:  # few users have READ on __transaction_state
            return CommitDecision(None, str(error))
        return decide(decisions, is_complete, partition, transaction)
