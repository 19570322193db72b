"""Checks the signature of a processor's function: the values and the step that it takes, and how it returns results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kstreams_py.errors import GraphError


def wants_step(what: str, function: Callable[..., Any], values: int, *, batch: bool, state: bool = False) -> bool:
    """Returns whether the function takes the step. Raises GraphError if it cannot take this number of values.

    - `state`: the function's last argument has to be `state`.
    """
    if not callable(function):
        raise GraphError(f"{what}: {function!r} is not a function: give one that takes a record's value")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return False  # a builtin without a signature takes only values
    value, step = ("values", "steps") if batch else ("value", "step")
    arguments = [value] if values == 1 else [f"{value}_{i}" for i in range(1, values + 1)]
    wants, kept = step in signature.parameters, ["state"] if state else []
    positional = [p.name for p in signature.parameters.values() if p.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
    try:
        more = [*([step] if wants else []), *kept]
        signature.bind(*arguments, *more)
        fits = positional[values : values + len(more)] == more
    except TypeError:
        fits = False
    if not fits:
        if not state and "state" in signature.parameters:
            raise GraphError(
                f"{what}: its function {show_function(function)} takes a state, and none is declared: give it one, "
                "state=ks.State('name')"
            )
        name, listed = getattr(function, "__name__", "function"), ", ".join(arguments)
        raise GraphError(
            f"{what}: its function is {name}{signature}: write {name}({', '.join([listed, *kept])}) or "
            f"{name}({', '.join([listed, step, *kept])})"
        )
    return wants


def is_generator(what: str, function: Callable[..., Any], *, batch: bool, sink: bool) -> bool:
    """Returns whether the function yields its results. Raises GraphError if a processor cannot call the function."""
    bodies = (function, type(function).__call__)
    generator = any(inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) for body in bodies)
    if generator and batch:
        raise GraphError(f"{what} is a batch and yields: return a list of one result per record")
    if generator and sink:
        raise GraphError(f"{what} is a sink and yields, so that its body would never run: write a plain function")
    return generator


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Returns whether the function is a coroutine function, or an asynchronous generator."""
    bodies = (function, type(function).__call__)
    return any(inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body) for body in bodies)


def show_type(value: object) -> str:
    """Returns the type of a value with its article, such as "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def show_function(function: Callable[..., Any]) -> str:
    """Returns the name of a function for a message, with its file and line if it is written in Python."""
    function = inspect.unwrap(function)
    name, code = getattr(function, "__name__", type(function).__name__), getattr(function, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"
