"""Tests whose cases are rows of data: one test for pytest, which runs all rows and names each that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def each_case(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Runs a test with each row, as `pytest.mark.parametrize` does, in one item of pytest.

    For tables of more than about ten rows: an item costs more than such a case. All rows are run, and those that fail
    are raised together, each with its values as a note. Fixtures are shared by the rows, so a test that changes one
    is parametrized instead. Decorators of this kind can be stacked.
    """
    keys = [names] if isinstance(names, str) else list(names)
    cases = [dict(zip(keys, (row,) if isinstance(names, str) else row, strict=True)) for row in rows]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**others: Any) -> None:
            failures: list[BaseException] = []
            for case in cases:
                try:
                    test(**case, **others)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"in the case {case}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases fail", failures)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        vars(run)["__signature__"] = signature.replace(parameters=left)
        return run

    return decorate
