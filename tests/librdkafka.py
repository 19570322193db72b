"""librdkafka as this process has loaded it, for what confluent-kafka does not offer."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from confluent_kafka import cimpl

Declared = Mapping[str, tuple[Any, list[Any]]]
"""Functions of C by their names: the type of the result, and those of the arguments."""


def load_librdkafka(declared: Declared) -> ctypes.CDLL:
    """The library with these functions declared: they are looked up in the extension module and its libraries."""
    library = ctypes.CDLL(cimpl.__file__)
    for name, (result, arguments) in declared.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
