"""Finds a graph by its target, `module:name` or `path/to/file.py:name`, and the target of a graph."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from kstreams_py.errors import GraphError, KStreamsError, did_you_mean
from kstreams_py.graph.topology import Graph


def load(target: str) -> Graph:
    """Imports a module, and returns a graph of it.

    `target` is `module:name` or `path/to/file.py:name`, without the name if the module holds a single graph. Raises
    GraphError, which names the module that does not import and the reason, or the graphs to choose from.
    """
    place, colon, name = target.partition(":")
    if not place or (colon and not name):
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


def _only_graph(place: str, module: ModuleType) -> Graph:
    names = {value: name for name, value in reversed(vars(module).items()) if isinstance(value, Graph)}
    if not names:
        raise GraphError(f"{place!r} holds no Graph: make one at its top level, such as graph = ks.Graph('shop')")
    if len(names) > 1:
        listed = sorted(names.values())
        raise GraphError(f"{place!r} holds several graphs: write one of {', '.join(f'{place}:{n}' for n in listed)}")
    return next(iter(names))


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Imports the file even if a module has its name; its directory comes first in sys.path, as for a script."""
    sys.path.insert(0, str(path.resolve().parent))
    name = f"graph_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def target_of(graph: Graph) -> str:
    """The target by which another process loads this graph: the module and the name of the global that holds it.

    Raises GraphError if no module has the graph as a global.
    """
    for module_name, module in list(sys.modules.items()):
        for name, value in list(vars(module).items()) if module is not None else ():
            if value is graph:
                place = getattr(module, "__file__", None) if module_name == "__main__" else module_name
                if place is not None:
                    return f"{place}:{name}"
    raise GraphError(
        f"graph {graph.name!r} is not a global of any module: several workers could not find it: assign it "
        "at the top level of its module, or run one slot"
    )
