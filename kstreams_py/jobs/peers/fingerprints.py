"""The fingerprint of a graph: peers with different fingerprints have different code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kstreams_py.graph.channels import describe_channels, describe_tasks
from kstreams_py.graph.topology import Graph


def fingerprint_of(graph: Graph) -> str:
    """Returns a hash of a graph's tasks and channels, and of the files that define its functions.

    Modules that these files import do not count.
    """
    files = {file for task in graph.tasks if (file := _file_of(task.function))}
    found = blake2b(digest_size=6, person=b"ks-graph")
    channels = dict.fromkeys(channel for task in graph.tasks for channel in (*task.inputs, *task.outputs))
    for line in [*describe_channels(channels), *describe_tasks(graph.tasks)]:
        found.update(line.encode(errors="surrogatepass") + b"\n")
    for file in sorted(files, key=lambda each: (Path(each).name, each)):
        found.update(Path(file).read_bytes())
    return found.hexdigest()


def _file_of(function: Callable[..., Any]) -> str | None:
    """Returns the file that defines a function; None if there is none, such as for a function written in C."""
    found: Any = inspect.unwrap(function)
    while isinstance(found, partial):
        found = found.func
    try:
        return inspect.getsourcefile(found)
    except TypeError:  # a callable object, or a function written in C
        try:
            return inspect.getsourcefile(type(found))
        except TypeError:
            return None
