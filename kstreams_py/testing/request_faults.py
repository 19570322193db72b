"""Faults of requests to the broker in memory: lost, without an answer, late; and outages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kstreams_py.steps.failures import ProcessKilled


class Crash(ProcessKilled):
    """Ends a process at a request."""


@dataclass(frozen=True, slots=True)
class RequestFault:
    """A fault of one request.

    - `error`: raised in the caller; None for the usual answer.
    - `applied`: whether the request is carried out or lost.
    - `late`: seconds after which the request reaches the broker (once more); None if it does not. Such a request taints
      its client, except a producer whose caller gets OutcomeUnknown.
    """

    error: BaseException | None = None
    applied: bool = True
    late: float | None = None

    def __post_init__(self) -> None:
        assert self.applied or self.error is not None, "a lost request has no answer: give an error"


@dataclass(frozen=True, slots=True)
class Outage:
    """Requests of these names get no answer until a time. For each, `applied` returns whether it is carried out."""

    until: float
    requests: frozenset[str]
    applied: Callable[[], bool]
