"""ports/kafka/: what needs no broker; the rest is in tests/contract/."""

from __future__ import annotations

import pytest

from kstreams_py.config import Settings
from kstreams_py.errors import Retriable
from kstreams_py.ports.kafka import KafkaLog


class Silent:
    """The future of an answer that never comes."""

    waited: float = 0.0

    def result(self, timeout: float) -> object:
        self.waited = timeout
        raise TimeoutError


def test_answer_that_never_comes_is_waited_for_longer_than_its_request_and_can_be_asked_for_again() -> None:
    log, silent = KafkaLog(Settings(bootstrap_servers="127.0.0.1:1", request_timeout_ms=7_000)), Silent()
    with pytest.raises(Retriable, match=r"^no answer from 127\.0\.0\.1:1 within 7 s$"):
        log._result(silent)
    assert silent.waited > 7.0
