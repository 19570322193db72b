"""What hard use has found (issue 8) and no simulation can see: each is put back in turn, and its test goes red.

The others are in tests/simulation/mutations_of_findings.py, and finding 3 in tests/mock/test_kafka_clients.py.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py import buffers, dead_letter, task
from kstreams_py.engine.slot import Slot
from kstreams_py.engine.supervisor import Supervisor
from kstreams_py.engine.transaction import Session
from kstreams_py.engine.watch import Watch
from kstreams_py.errors import Replaced, WorkersFailed
from kstreams_py.ports.kafka import errors, producer
from kstreams_py.ports.kafka.consumer import KafkaConsumer
from kstreams_py.ports.kafka.producer import KafkaProducer
from tests.unit import (
    test_buffers,
    test_dead_letter,
    test_kafka_consumer,
    test_kafka_log,
    test_kafka_producer,
    test_leaving,
    test_supervisor,
    test_task,
    test_transaction,
    test_watch,
)

# The fixtures of those tests.
member, said = test_kafka_consumer.member, test_watch.said
at_once, full = test_supervisor.at_once, test_supervisor.full

Red = (AssertionError, pytest.fail.Exception)


def test_9_missing_right_that_looks_like_idleness_is_seen(
    member: test_kafka_consumer.Member,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KafkaConsumer, "_raise_if_serious", lambda *_: None)
    with pytest.raises(Red, match="DID NOT RAISE"):
        test_kafka_consumer.test_right_that_is_missing_is_named(
            ck.KafkaError.GROUP_AUTHORIZATION_FAILED, "", "joining the group 'g'", "READ", "event", member
        )


def test_10_pinned_positions_without_a_word_are_seen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Session, "_name_pinned", lambda *_: None)
    with pytest.raises(Red, match="have not been readable"):
        test_transaction.test_positions_that_stay_pending_are_named_every_30_seconds_with_what_holds_them(
            monkeypatch, caplog
        )


def test_11_function_that_never_returns_and_is_not_replaced_is_seen(
    said: test_watch.Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = Watch._judge
    monkeypatch.setattr(Watch, "_judge", lambda self, what, seconds, _, more: judge(self, what, seconds, None, more))
    with pytest.raises(Red, match="Stuck"):
        test_watch.test_loop_that_stands_still_for_stuck_timeout_is_to_be_replaced(said)


def test_11_function_that_never_returns_without_a_word_is_seen(
    said: test_watch.Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Watch, "_judge", lambda *_: None)
    with pytest.raises(Red, match="has not turned"):
        test_watch.test_loop_that_stands_still_for_stuck_timeout_is_to_be_replaced(said)


def test_11_report_that_waits_for_its_supervisor_is_seen(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def write_without_waiting(fd: int, data: bytes) -> int:
        assert not os.get_blocking(fd) or select.select([], [fd], [], 0)[1], "it waits"
        return write(fd, data)

    monkeypatch.setattr(os, "set_blocking", lambda *_: None)
    monkeypatch.setattr(os, "write", write_without_waiting)
    with pytest.raises(Red, match="it waits"):
        request.getfixturevalue("full")


def test_13_slot_that_is_taken_and_ends_the_others_is_seen(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    at_once: None,
) -> None:
    def end_all(self: Supervisor, child: Any, why: str) -> None:
        raise WorkersFailed(f"slot {child.slot} ended by {why}", Replaced.exit_status)

    monkeypatch.setattr(Supervisor, "_let_go", end_all)
    with pytest.raises(WorkersFailed, match="slot 1 ended by Replaced"):
        test_supervisor.test_slot_that_was_taken_ends_with_its_words_and_the_others_go_on(tmp_path, caplog, at_once)


def test_14_worker_that_is_to_leave_and_keeps_its_membership_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slot, "_leave", lambda *_: None)
    with pytest.raises(Red, match="leave"):
        test_leaving.test_worker_that_stops_leaves_its_group_after_its_last_commit(tmp_path)


def test_15_buffers_that_are_bounded_by_count_only_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_size", lambda _: 0)
    with pytest.raises(Red):
        test_buffers.test_one_partition_is_paused_at_half_of_the_bytes(test_buffers.joining)


def test_15_outputs_of_a_generator_that_are_bounded_by_count_only_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_bytes", lambda _: 0)
    with pytest.raises(Red):
        test_task.test_generator_stops_after_the_step_with_which_its_outputs_are_many(
            "map", "OUTPUT_BYTES", monkeypatch
        )


def test_16_plan_that_gets_no_more_than_the_time_of_one_request_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(self: KafkaProducer) -> int:
        return self._drain(producer.time.monotonic() + self._limit)

    monkeypatch.setattr(KafkaProducer, "_await_acknowledgements", give_up)
    with pytest.raises(test_kafka_producer.Retriable, match="records wait for their acknowledgement"):
        test_kafka_producer.test_flush_goes_on_while_the_broker_makes_progress(monkeypatch)


def test_17_dead_letter_that_is_not_cut_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(content: Mapping[str, Any], key: bytes | None, record: Callable[..., Any], limit: int) -> Any:
        return record(content, key)

    monkeypatch.setattr(dead_letter, "_fitting", whole)
    with pytest.raises(Red):
        test_dead_letter.test_value_of_two_megabytes_is_kept_as_far_as_it_fits()


def test_18_client_that_was_not_tested_without_a_word_is_seen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(errors, "TESTED_CLIENTS", frozenset({"9.9.9"}))
    errors.warn_if_untested.cache_clear()
    with pytest.raises(Red, match="is not among the versions tested"):
        test_kafka_log.test_untested_client_is_a_warning_once(monkeypatch, caplog)
    errors.warn_if_untested.cache_clear()
