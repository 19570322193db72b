"""What only a real cluster's client does for the guarantees: each is left out in turn, and the contract goes red."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kstreams_py.delivery import Durability
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.kafka.consumer import KafkaConsumer
from kstreams_py.ports.kafka.producer import KafkaProducer
from tests.contract import test_log as contract
from tests.contract.rig import KafkaRig

Red = (AssertionError, pytest.fail.Exception)


@pytest.fixture
def rig(broker: Any) -> Iterator[KafkaRig]:
    rig = KafkaRig(broker.bootstrap_servers)
    yield rig
    rig.close()


def consumers_with(**settings: Any) -> Callable[[KafkaLog], dict[str, Any]]:
    """The settings of consumers, with others."""
    usual = KafkaLog._of_consumers
    return lambda log: usual(log) | {name.replace("_", "."): value for name, value in settings.items()}


def test_no_group_metadata_with_the_positions_is_seen(rig: KafkaRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaConsumer, "group_metadata", lambda self: rig.no_member(self._settings["group.id"]))
    with pytest.raises(Red, match="DID NOT RAISE"):
        contract.test_seat_taken_over_by_a_new_consumer_gives_it_the_partitions_and_ends_the_old_one(
            rig, "send_offsets"
        )


def test_seat_that_is_not_asked_for_is_seen(rig: KafkaRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaConsumer, "hold_seat", lambda self: None)
    with pytest.raises(Red, match="DID NOT RAISE"):
        contract.test_seat_taken_over_by_a_new_consumer_gives_it_the_partitions_and_ends_the_old_one(rig, "hold_seat")


def test_reading_what_is_not_committed_is_seen(rig: KafkaRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaLog, "_of_consumers", consumers_with(isolation_level="read_uncommitted"))
    with pytest.raises(Red):
        contract.test_committed_transaction_is_seen_and_an_aborted_one_is_not(rig)


def test_acknowledgements_that_are_not_waited_for_are_seen(rig: KafkaRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaProducer, "flush", lambda self: None)
    with pytest.raises(Red, match="DID NOT RAISE"):
        contract.test_flush_without_a_transaction_raises_for_a_delivery_that_failed_and_names_the_topic(
            rig, Durability.COMMITTED
        )
