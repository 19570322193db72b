"""Each defect of issue 8 that no simulation can detect, put back in turn: its unit test must fail.

The other findings are in tests/simulation/mutations_of_findings.py, and the client's part of finding 3 in
tests/mock/test_kafka_clients.py.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.errors import Refused, Replaced, Retriable, WorkersFailed
from kstreams_py.kafka import errors, producer
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.processing.commits.guarantees import AtMostOnce
from kstreams_py.processing.runners import runner
from kstreams_py.processing.tasks import task
from kstreams_py.processing.tasks.committed import CommittedOffsets
from kstreams_py.running.slot import Slot
from kstreams_py.running.supervised import SupervisedSlot
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.watch import Watch
from kstreams_py.steps import dead_letters as dead_letter
from tests.unit import (
    test_at_most_once,
    test_committed,
    test_dead_letters,
    test_guarantees,
    test_kafka_cluster,
    test_kafka_consumer,
    test_kafka_producer,
    test_leaving,
    test_pipe,
    test_runner,
    test_supervisor,
    test_tasks,
    test_watch,
)

# The fixtures of those tests.
member, take_warnings = test_kafka_consumer.member, test_watch.take_warnings
no_backoff, pipe = test_supervisor.no_backoff, test_pipe.pipe

FAILURE = (AssertionError, pytest.fail.Exception)


def test_finding_2_outputs_that_are_not_awaited_at_the_end_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtMostOnce, "_deliver_at_end", lambda self: None)
    with pytest.raises(FAILURE, match="b'1', b'2'"):
        test_guarantees.test_at_most_once_end_delivers_outputs_set_apart()


def test_finding_2_outputs_dropped_beside_a_refused_one_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused batch is returned as a whole."""
    deliver = AtMostOnce._deliver_at_end

    def deliver_once(self: AtMostOnce) -> None:
        try:
            deliver(self)
        except Refused:
            self._forget()

    monkeypatch.setattr(AtMostOnce, "_deliver_at_end", deliver_once)
    with pytest.raises(FAILURE, match="'2'"):
        test_at_most_once.test_refused_output_whose_dead_letter_cannot_be_encoded_stays_to_be_written()


def test_finding_9_missing_right_that_is_not_raised_is_detected(
    member: test_kafka_consumer.Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaConsumer, "_raise_if_serious", lambda *_: None)
    with pytest.raises(FAILURE, match="DID NOT RAISE"):
        test_kafka_consumer.test_missing_right_is_named(
            ck.KafkaError.GROUP_AUTHORIZATION_FAILED, "", "joining the group 'g'", "READ", "event", member
        )


def test_finding_10_pending_offsets_without_a_warning_are_detected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CommittedOffsets, "_name_what_holds", lambda *_: None)
    with pytest.raises(FAILURE, match="have not been readable"):
        test_committed.test_committed_offsets_that_stay_pending_are_logged_every_30_seconds(monkeypatch, caplog)


def test_finding_11_stuck_function_that_is_not_replaced_is_detected(
    take_warnings: test_watch.TakeWarnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Watch._judge
    monkeypatch.setattr(Watch, "_judge", lambda self, what, seconds, _, more: judge(self, what, seconds, None, more))
    with pytest.raises(FAILURE, match="Stuck"):
        test_watch.test_loop_that_stands_still_for_stuck_timeout_is_to_be_replaced(take_warnings)


def test_finding_11_stuck_function_without_a_warning_is_detected(
    take_warnings: test_watch.TakeWarnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "_judge", lambda *_: None)
    with pytest.raises(FAILURE, match="has made no progress"):
        test_watch.test_loop_that_stands_still_for_stuck_timeout_is_to_be_replaced(take_warnings)


def test_finding_11_report_that_blocks_on_its_supervisor_is_detected(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def write_unless_it_blocks(fd: int, data: bytes) -> int:
        assert not os.get_blocking(fd) or select.select([], [fd], [], 0)[1], "it blocks"
        return write(fd, data)

    monkeypatch.setattr(os, "set_blocking", lambda *_: None)
    monkeypatch.setattr(os, "write", write_unless_it_blocks)
    with pytest.raises(FAILURE, match="it blocks"):
        test_pipe.fill(500)


def test_finding_13_replaced_slot_that_ends_the_others_is_detected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, no_backoff: None
) -> None:
    def end_all(self: Supervisor, slot: SupervisedSlot) -> None:
        raise WorkersFailed(f"slot {slot.number} ended by {slot.taken}", Replaced.exit_status)

    monkeypatch.setattr(Supervisor, "_leave", end_all)
    with pytest.raises(WorkersFailed, match="slot 1 ended by Replaced"):
        test_supervisor.test_replaced_slot_ends_with_its_error_and_the_others_keep_running(tmp_path, caplog, no_backoff)


def test_finding_14_worker_that_stops_without_leaving_its_group_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slot, "_leave", lambda *_: None)
    with pytest.raises(FAILURE, match="leave"):
        test_leaving.test_worker_that_stops_leaves_its_group_after_its_last_commit(tmp_path)


def test_finding_15_buffers_bounded_by_count_only_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_size", lambda _: 0)
    with pytest.raises(FAILURE, match="assert 100 == "):
        test_tasks.test_one_partition_is_paused_at_half_of_the_bytes(test_tasks.make_join)


def test_finding_15_generator_outputs_bounded_by_count_only_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "value_bytes", lambda _: 0)
    with pytest.raises(FAILURE, match=r", 5\) == \("):
        test_runner.test_generator_outputs_over_the_limit_end_the_plan_and_the_rest_is_run_later(
            "map", "OUTPUT_BYTES", monkeypatch
        )


def test_finding_16_flush_that_gives_up_after_one_request_timeout_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(self: KafkaProducer) -> int:
        now = producer.time.monotonic()  # type: ignore[attr-defined]  # the clock of the test
        return self._drain(now + self._limit)

    monkeypatch.setattr(KafkaProducer, "_await_acknowledgements", give_up)
    with pytest.raises(Retriable, match="records wait for their acknowledgement"):
        test_kafka_producer.test_flush_continues_while_the_broker_makes_progress(monkeypatch)


def test_finding_17_dead_letter_that_is_not_cut_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(content: Mapping[str, Any], key: bytes | None, record: Callable[..., Any], limit: int) -> Any:
        return record(content, key)

    monkeypatch.setattr(dead_letter, "_fitting", whole)
    with pytest.raises(FAILURE, match="'cut': None"):
        test_dead_letters.test_value_of_two_megabytes_is_cut_to_the_limit()


def test_finding_18_untested_client_without_a_warning_is_detected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(errors, "TESTED_CLIENTS", frozenset({"9.9.9"}))
    errors.warn_if_untested.cache_clear()
    with pytest.raises(FAILURE, match="is not among the versions tested"):
        test_kafka_cluster.test_untested_client_version_is_warned_of_once(monkeypatch, caplog)
    errors.warn_if_untested.cache_clear()
