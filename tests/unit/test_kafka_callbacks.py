"""Callbacks of kafka/consumer.py on a fenced client, and a loop that ends by what is not an exception."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.errors import Fatal, Replaced
from kstreams_py.kafka import consumer as module
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.kafka.membership import Holder
from kstreams_py.running.slot import Slot
from kstreams_py.settings import Settings

WAIT = 60.0


class Fenced:
    """A client fenced by another of its group.instance.id: it refuses each call that changes its membership."""

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
def test_client_fenced_before_its_callback_is_served_has_lost_its_membership(
    monkeypatch: pytest.MonkeyPatch, callback: str
) -> None:
    clients: list[Fenced] = []

    def new_client(client: object, settings: Any, log: object) -> Fenced:
        clients.append(Fenced(settings))
        return clients[-1]

    monkeypatch.setattr(module, "new_client", new_client)
    settings = {
        "group.id": "g.p",
        "group.instance.id": "g.p.0",
        "session.timeout.ms": 9_000,
        "client.id": "g.p.0@here-1",
    }
    consumer = KafkaConsumer(
        settings, 1.0, lambda group, instance_id: Holder("new", "g.p.0@there-2", "192.0.2.1", True, 1)
    )
    lost: list[str] = []
    consumer.subscribe(["in"], lambda _: None, lambda: None, lambda: lost.append("lost"))
    consumer._membership.member = "old"
    clients[0].callbacks[callback](clients[0], [])
    assert lost == ["lost"]
    with pytest.raises(Replaced) as raised:
        consumer.consume(1, 0.0)
    assert str(raised.value) == (
        "another worker has taken the slot of g.p.0 over (member new; g.p.0@there-2 on 192.0.2.1); this one ends"
    )


def raise_what_is_no_exception() -> None:
    """Raises as confluent-kafka does after a callback that raised: `except BaseException` does not catch it."""
    raising = ctypes.pythonapi.PyErr_SetObject
    raising.argtypes, raising.restype = [ctypes.py_object, ctypes.py_object], None
    raising(ck.KafkaError, ck.KafkaError(ck.KafkaError._FATAL))


def test_slot_ends_if_a_client_raises_what_is_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # pytest's own hook takes exceptions only
    slot = Slot(SimpleNamespace(name="g"), 0, SimpleNamespace(cluster=None, settings=Settings(), target="g.py"))  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(run=raise_what_is_no_exception, processor=SimpleNamespace(id="copy"))
    thread = threading.Thread(target=slot._run, args=(worker,))
    thread.start()
    thread.join(WAIT)
    assert slot._stopping.is_set()
    (failure,) = slot._failures
    assert isinstance(failure, Fatal)
    assert str(failure) == "copy: its loop was ended by its client: see the log"
