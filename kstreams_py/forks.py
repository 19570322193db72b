"""Keeps a child of `os.fork` from ending its copies of clients and databases: the child lacks their threads."""

from __future__ import annotations

import ctypes
import os
from typing import Final
from weakref import WeakSet

_owners: Final = WeakSet[object]()


def leave_to_this_process(owner: object) -> None:
    """Keeps an object, with everything that it holds, from being freed in a child of this process."""
    _owners.add(owner)


def _keep_all() -> None:
    for owner in list(_owners):
        # an extra reference: freeing a client of librdkafka when the child exits would crash it (SIGSEGV)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    _owners.clear()


os.register_at_fork(after_in_child=_keep_all)
