"""Mutations of the real cluster's clients: the contract suite fails if one of their protections is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kstreams_py.graph.guarantees import Durability
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.kafka.membership import Membership, Owner
from kstreams_py.kafka.producer import KafkaProducer
from tests.contract import test_cluster as contract
from tests.contract.rig import KafkaRig

FAILURES = (AssertionError, pytest.fail.Exception)


@pytest.fixture
def rig(broker: Any) -> Iterator[KafkaRig]:
    rig = KafkaRig(broker.bootstrap_servers)
    yield rig
    rig.close()


def consumers_with(**settings: Any) -> Callable[[KafkaCluster], dict[str, Any]]:
    """The usual settings of consumers, with the given ones changed."""
    usual = KafkaCluster._of_consumers
    return lambda log: usual(log) | {name.replace("_", "."): value for name, value in settings.items()}


def test_mutation_offsets_without_group_metadata_fail_the_contract(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaConsumer, "group_metadata", lambda self: rig.no_member(self._settings["group.id"]))
    with pytest.raises(FAILURES, match="DID NOT RAISE"):
        contract.test_membership_taken_over_gives_the_partitions_and_ends_the_old_consumer(rig, "send_offsets")


def test_mutation_membership_that_is_never_checked_fails_the_contract(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaConsumer, "membership", lambda self: Membership(Owner.OURS))
    with pytest.raises(FAILURES, match=r"Owner\.OURS"):
        contract.test_membership_taken_over_gives_the_partitions_and_ends_the_old_consumer(rig, "send_offsets")


def test_mutation_reading_uncommitted_records_fails_the_contract(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaCluster, "_of_consumers", consumers_with(isolation_level="read_uncommitted"))
    with pytest.raises(FAILURES, match="b'c'"):
        contract.test_committed_transaction_is_seen_and_an_aborted_one_is_not(rig)


def test_mutation_flush_without_acknowledgements_fails_the_contract(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaProducer, "flush", lambda self: None)
    with pytest.raises(FAILURES, match="DID NOT RAISE"):
        contract.test_flush_without_a_transaction_raises_for_a_failed_delivery_by_topic(rig, Durability.COMMITTED)
