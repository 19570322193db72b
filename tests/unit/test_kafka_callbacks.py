"""The callbacks of ports/kafka/consumer.py with a client that refuses, and a loop that its client ends."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.engine.slot import Slot
from kstreams_py.errors import Fatal, Replaced
from kstreams_py.ports.kafka import consumer as module
from kstreams_py.ports.kafka.consumer import Holder, KafkaConsumer

WAIT = 60.0


class Fenced:
    """A client that was fenced by another of its group.instance.id: all that changes its membership is refused."""

    def __init__(self, settings: Any, **_: Any) -> None:
        self.callbacks: dict[str, Any] = {}

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def memberid(self) -> str:
        return "old"

    def _refuse(self, *_: object) -> None:
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._FATAL))

    assign = unsubscribe = _refuse


@pytest.mark.parametrize("callback", ["on_assign", "on_lost"])
def test_client_that_was_fenced_before_its_callback_is_served_has_lost_its_membership(
    monkeypatch: pytest.MonkeyPatch, callback: str
) -> None:
    made: list[Fenced] = []
    monkeypatch.setattr(module, "made", lambda client, settings, log: made.append(Fenced(settings)) or made[-1])
    settings = {"group.id": "g.p", "group.instance.id": "g.p.0", "client.id": "g.p.0@here-1"}
    consumer = KafkaConsumer(settings, 1.0, lambda group, seat: Holder("new", "g.p.0@there-2", "192.0.2.1"))
    lost: list[str] = []
    consumer.subscribe(["in"], lambda _: None, lambda: None, lambda: lost.append("lost"))
    consumer._member = "old"
    made[0].callbacks[callback](made[0], [])
    assert lost == ["lost"]
    with pytest.raises(Replaced) as raised:
        consumer.consume(1, 0.0)
    assert str(raised.value) == (
        "another worker has taken the slot of g.p.0 over (member new; g.p.0@there-2 on 192.0.2.1); this one ends"
    )


def raise_what_is_no_exception() -> None:
    """As confluent-kafka does after a callback that raised: `except BaseException` does not see it."""
    raising = ctypes.pythonapi.PyErr_SetObject
    raising.argtypes, raising.restype = [ctypes.py_object, ctypes.py_object], None
    raising(ck.KafkaError, ck.KafkaError(ck.KafkaError._FATAL))


def test_loop_that_its_client_ends_by_what_is_no_exception_ends_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # pytest's own takes exceptions only
    slot = Slot(SimpleNamespace(), 0, SimpleNamespace(log=None))  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(run=raise_what_is_no_exception, processor=SimpleNamespace(id="copy"))
    thread = threading.Thread(target=slot._run, args=(worker,))
    thread.start()
    thread.join(WAIT)
    assert slot._stopping.is_set()
    (failure,) = slot._failures
    assert isinstance(failure, Fatal)
    assert str(failure) == "copy: its loop was ended by its client: see the log"
