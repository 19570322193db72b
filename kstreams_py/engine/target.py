"""How a process finds a graph: `module:name` or `path/to/file.py:name`, and from a graph back to that."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from kstreams_py.errors import GraphError, KStreamsError
from kstreams_py.topology import Graph


def load(target: str) -> Graph:
    """The graph at `module:name` or `path/to/file.py:name`. Raises GraphError naming what does not import, and why."""
    place, _, name = target.partition(":")
    if not place or not name:
        raise GraphError(f"{target!r} names no graph: write module:graph or path/to/file.py:graph")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except KStreamsError as error:
        raise type(error)(f"{place}: {error}") from error
    except (Exception, SystemExit) as error:
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)[1:]
            if "importlib" not in f.filename and f.filename != __file__
        ]
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise GraphError(
            f"{place!r} does not import: {type(error).__name__}: {error}{where}: "
            "correct it, or start from the directory it is in"
        ) from error
    graph = getattr(module, name, None)
    if not isinstance(graph, Graph):
        raise GraphError(f"{place!r} has no Graph named {name!r}: correct the name after the colon")
    return graph


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """The file itself, whatever module there is of its name; its directory is searched first, as for a script."""
    sys.path.insert(0, str(path.resolve().parent))
    name = f"graph_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def target_of(graph: Graph) -> str:
    """How another process finds this graph: the module and the name of the global that holds it."""
    for module_name, module in list(sys.modules.items()):
        for name, value in list(vars(module).items()) if module is not None else ():
            if value is graph:
                place = getattr(module, "__file__", None) if module_name == "__main__" else module_name
                if place is not None:
                    return f"{place}:{name}"
    raise GraphError(f"graph {graph.name!r} is not a global of any module: several workers could not find it")
