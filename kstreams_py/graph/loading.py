"""Finds a graph by its target, `module:name` or `path/to/file.py:name`, and the target of a graph."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from operator import is_
from pathlib import Path
from types import ModuleType
from typing import Final

from kstreams_py.errors import GraphError, KStreamsError, did_you_mean
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.topology import Graph

PACKAGE: Final = f"{Path(__file__).parents[1]}/"

FILE_MODULE: Final = "graph_file_"
"""The name of a module that is loaded from a file begins with this."""

EXTRAS: Final = {
    "delta": "delta", "jgo": "broker", "msgspec": "peers", "opentelemetry": "otel", "prometheus_client": "metrics",
    "psycopg": "postgresql", "pyarrow": "parquet", "pyspark": "spark", "redis": "redis", "rocksdict": "rocksdb",
    "tornado": "http", "zmq": "peers",
}  # fmt: skip
"""The extra of this package that installs a module."""

UNKNOWN: Final = "GRAPH"
"""Stands for the target in a command that is shown, if no module has the graph as a global."""

_OR_START: Final = ", or start from the directory it is in"


def load(target: str) -> Graph:
    """Imports a module, and returns the graph in it.

    - `target`: `module:name` or `path/to/file.py:name`; without the name if the module holds a single graph.

    Raises GraphError, which names the module that cannot be imported and the reason, or the graphs to choose from.
    """
    drive = target[:2] if re.match(r"[A-Za-z]:[\\/]", target) else ""
    place, colon, name = target.removeprefix(drive).partition(":")
    place = drive + place
    if not place or (colon and not name):
        raise GraphError(f"{target!r} names no graph: write module:graph or path/to/file.py:graph")
    with suppress(OSError):  # if a directory may not be searched, the import's error names it
        _check_place(place)
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except KStreamsError as error:
        where = _where(error, within=PACKAGE)
        own = f"{Path(place).resolve()}, line "
        where = f", line {where.removeprefix(own)}" if where.startswith(own) else f" ({where})" if where else ""
        raise type(error)(f"{place}{where}: {error}") from error
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        where = f" ({found})" if (found := _where(error, within=__file__)) else ""
        remedy = f"run pip install 'kstreams_py[{EXTRAS[top]}]'" if top in EXTRAS else f"install it{_OR_START}"
        raise GraphError(f"{place!r} does not import: there is no module {error.name!r}{where}: {remedy}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and Path(error.filename or "").is_file() and error.lineno:
            raise GraphError(f"{place!r} does not import: {_show_syntax_error(error)}") from None
        where = f" ({found})" if (found := _where(error, within=__file__)) else ""
        raise GraphError(
            f"{place!r} does not import: {type(error).__name__}: {error}{where}: correct it{_OR_START}"
        ) from error
    if not colon:
        return _only_graph(place, module)
    graph = getattr(module, name, None)
    if not isinstance(graph, Graph):
        names = [other for other, value in vars(module).items() if isinstance(value, Graph)]
        close = did_you_mean(name, names) or (f"it has {', '.join(sorted(names))}" if names else "")
        raise GraphError(
            f"{place!r} has no Graph named {name!r}: correct the name after the colon" + (f": {close}" if close else "")
        )
    return graph


def _check_place(place: str) -> None:
    """Raises GraphError unless `place` is an existing Python file or the name of a module."""
    path = Path(place)
    is_file, is_directory = path.is_file(), path.is_dir()
    if place.endswith(".py") and is_directory:
        raise GraphError(f"{place!r} is a directory: name a Python file in it")
    if place.endswith(".py") and not is_file:
        close = did_you_mean(path.name, [each.name for each in path.parent.glob("*.py")])
        raise GraphError(
            f"there is no file {place!r}: {close or 'correct the path, or start from the directory it is in'}"
        )
    is_module = all(part.isidentifier() for part in place.split(".")) and not (is_file and path.suffix)
    if not place.endswith(".py") and not is_module:
        what = "a directory" if is_directory else "neither a Python file, whose name ends in .py, nor a module"
        raise GraphError(f"{place!r} is {what}: write path/to/file.py or module, and :name if it has several graphs")


def _where(error: BaseException, within: str) -> str:
    """Returns the file and line of an error's innermost frame outside Python's import and `within`; "" if none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        if "importlib" not in frame.filename and not frame.filename.startswith(within)
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _show_syntax_error(error: SyntaxError) -> str:
    """Returns a syntax error as text: its file and line, and below these the line of the source with a caret."""
    place = f"{error.filename}, line {error.lineno}"
    # the lines between the name of the file and the message, as Python prints them
    source = "".join(traceback.format_exception_only(error)[1:-1]).rstrip()
    return f"{type(error).__name__}: {error.msg} ({place}): correct it" + (f"\n{source}" if source else "")


def _only_graph(place: str, module: ModuleType) -> Graph:
    names = {value: name for name, value in reversed(vars(module).items()) if isinstance(value, Graph)}
    if not names:
        raise GraphError(f"{place!r} holds no Graph: make one at its top level, such as graph = ks.Graph('shop')")
    if len(names) > 1:
        listed = sorted(names.values())
        raise GraphError(f"{place!r} holds several graphs: write one of {', '.join(f'{place}:{n}' for n in listed)}")
    return next(iter(names))


def _import_module(name: str) -> ModuleType:
    """Imports a module: from the current directory if it is there, else from installed packages first."""
    here, top = Path.cwd(), name.partition(".")[0]
    is_here = (here / top).exists() or (here / f"{top}.py").exists()
    # if the graph is elsewhere, a file in this directory, which others may write to, must not replace a library
    sys.path.insert(0 if is_here else len(sys.path), str(here))
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Imports a file, even if a module has the same name. Its directory comes first in sys.path, as for a script."""
    sys.path.insert(0, str(path.resolve().parent))
    name = f"{FILE_MODULE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def target_of(graph: Graph) -> str:
    """Returns the target by which another process loads this graph: its module, and the global that holds it.

    Raises GraphError if no module that another process can import has the graph as a global.
    """
    homes = [*_homes(graph)]
    for module_name, module, name in homes:
        place = _file_of(module) if module_name == "__main__" else module_name
        if place is not None:
            return f"{place}:{name}"
    if homes:
        file = f"{graph.name}.py"
        raise GraphError(
            f"graph {graph.name!r} is in a program without a file (standard input, python -c, an interactive session, "
            f"a notebook), which the processes of several workers cannot import: write it to a file, such as {file}, "
            f"and run `kstreams run {file} --workers 2`, or run one slot, which needs no other process"
        )
    raise GraphError(
        f"graph {graph.name!r} is not a global of any module: several workers could not find it: assign it "
        "at the top level of its module, or run one slot"
    )


def show_target(graph: Graph) -> str:
    """Returns the target of a graph for a command that a person types; UNKNOWN if no module has it as a global."""
    for module_name, module, name in _homes(graph):
        is_file = module_name == "__main__" or module_name.startswith(FILE_MODULE)
        place = _file_of(module) if is_file else module_name
        if module_name == "__main__" and (spec := module.__spec__) is not None:  # python -m
            is_file, place = False, spec.name.removesuffix(".__main__")
        if place is not None:
            near = _relative(place) if is_file else place
            graphs = {id(value) for value in vars(module).values() if isinstance(value, Graph)}
            return shlex.quote(near if len(graphs) == 1 else f"{near}:{name}")
    return UNKNOWN


def show_command(graph: Graph, command: str, *arguments: str) -> str:
    """Returns a command about a graph as a person types it, such as kstreams recover reset shop.py price.

    If no module has the graph as a global, returns only the command: kstreams recover reset.
    """
    target = show_target(graph)
    words = (target, *map(shlex.quote, arguments)) if target != UNKNOWN else ()
    return " ".join(("kstreams", command, *words))


def show_reset(pipeline: Pipeline) -> str:
    """Returns the command that resets a pipeline as a person types it, such as kstreams pipeline reset shop.py totals.

    If no module has its graph as a global, returns only the command.
    """
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()) if module is not None else ():
            if isinstance(value, Graph) and any(each is pipeline for each in value.pipelines):
                return show_command(value, "pipeline reset", pipeline.id)
    return "kstreams pipeline reset"


def _relative(path: str) -> str:
    """Returns a path relative to the working directory, if that is shorter."""
    try:
        return min(os.path.relpath(path), path, key=len)
    except (OSError, ValueError):  # the directory was deleted, or is on another Windows drive
        return path


def _file_of(module: ModuleType) -> str | None:
    """Returns the file of a module. None for a program without one, whose "file" Python may call <stdin>."""
    place: str | None = getattr(module, "__file__", None)
    return None if place is None or place.startswith("<") else place


def _homes(graph: Graph) -> Iterator[tuple[str, ModuleType, str]]:
    """Yields each loaded module that has the graph as a global: its name, the module, and the name of the global."""
    for module_name, module in list(sys.modules.items()):
        found = {} if module is None else vars(module)
        # a process has 100,000 globals, and each start of a processor searches them
        if True in map(partial(is_, graph), list(found.values())):
            yield from ((module_name, module, name) for name, value in list(found.items()) if value is graph)
