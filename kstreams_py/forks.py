"""What a child of `os.fork` must leave alone: its copies of clients and databases, whose threads it does not have."""

from __future__ import annotations

import ctypes
import os
from typing import Final
from weakref import WeakSet

_owners: Final = WeakSet[object]()


def leave_to_this_process(owner: object) -> None:
    """Keeps an object, with all that it holds, from being ended in a child of this process."""
    _owners.add(owner)


def _keep_all() -> None:
    for owner in list(_owners):
        # one reference too many: Python's end in the child would end a client of librdkafka there, a SIGSEGV
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    _owners.clear()


os.register_at_fork(after_in_child=_keep_all)
