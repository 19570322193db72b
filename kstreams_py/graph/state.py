"""State: the keyed store that a processor's function keeps from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from kstreams_py.formats.serdes import Json, Serde, String

K = TypeVar("K", default=str)
V = TypeVar("V", default=Any)


def _text() -> Any:
    return String()


@dataclass(frozen=True)  # with slots, State[str, int](...) fails in Python 3.11
class State(Generic[K, V]):
    """A keyed store for the function of a processor: `state=ks.State("totals", value=ks.Json())`.

    Each task, a processor on one partition number, has a store of its own. The function takes it as its last argument,
    `state` (kstreams_py.state.KeyedStore). Its changes are written to a compacted changelog topic, in the transaction
    of the outputs and offsets. The next worker of the task restores the store from that topic.

    - `name`: the name of the store, unique in its graph.
    - `key`, `value`: the serdes of its keys (text by default) and values (JSON by default).
    - `on_disk`: keep it in RocksDB, in `state_directory` of the settings, instead of in memory.
    """

    name: str
    key: Serde[K] = field(default_factory=_text)
    value: Serde[V] = field(default_factory=Json)
    on_disk: bool = False
