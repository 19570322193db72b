"""Events that wait are told of in reports and series, and warned of when they wait too long."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from kstreams_py.metrics import EventCounts, LongestHeld
from kstreams_py.running.http.series import SERIES
from kstreams_py.running.reports import Report
from kstreams_py.running.slot import HeldEvents
from kstreams_py.running.status import RunStatus, SlotStatus

A = LongestHeld("gates.apply", "events[0]@12", "an object", 7, 5, since=100.0)


def test_event_that_waits_too_long_is_warned_of_and_again_after_twice_as_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now = 100.0
    held = HeldEvents(60.0, lambda: now)
    counts = EventCounts(held_now=3, stopped_now=2, longest_held=A)
    warned = []
    for now in (100.0, 159.0, 161.0, 200.0, 221.0, 223.0, 300.0):
        found = held.look("apply", counts)
        assert found == {"held": 3, "stopped": 2, "held_seconds": now - 100, "held_limit": 60.0}
        if caplog.messages:
            warned.append((now, *caplog.messages))
            caplog.clear()
    assert [at for at, *_ in warned] == [161.0, 223.0]
    waits = "event 7 of 'an object', at events[0]@12, has waited for 61 s for event 5, which has not arrived"
    sends = "if that is a dead letter, `kstreams order resume GRAPH 'an object'` sends it"
    remedy = f"{sends}; if it is lost, `kstreams order accept` goes on without it"
    assert warned[0][1:] == (f"apply: {waits} (3 events wait): {remedy}",)
    other = replace(counts, longest_held=A._replace(object="b", since=230.0))
    held.look("apply", other)
    held.look("other", counts)
    held.look("other", counts)
    assert [message[:22] for message in caplog.messages] == ["apply: event 7 of 'b',", "other: event 7 of 'an "]
    assert held.look("apply", EventCounts()) == {"held": 0, "stopped": 0, "held_seconds": 0.0, "held_limit": 60.0}


def test_series_of_events_are_of_processors_that_apply_such() -> None:
    of_events = Report(
        "apply",
        0,
        {},
        0,
        measures={"events:applied": 9, "events:fault": 1},
        events={"held": 3, "stopped": 2, "held_seconds": 61.0, "held_limit": 60.0},
    )
    status = RunStatus((SlotStatus(0, 1, (of_events, Report("price", 0, {}, 0))),), 0.0)
    names = ("events", "held_events", "held_seconds", "stopped_objects")
    assert {series.name: list(series.samples(status)) for series in SERIES if series.name in names} == {
        "events": [
            (("apply", "0", "applied"), 9),
            (("apply", "0", "duplicate"), 0),
            (("apply", "0", "held"), 0),
            (("apply", "0", "fault"), 1),
        ],
        "held_events": [(("apply", "0"), 3)],
        "held_seconds": [(("apply", "0"), 61.0)],
        "stopped_objects": [(("apply", "0"), 2)],
    }
    taken = RunStatus((replace(status.slots[0], taken="elsewhere"),), 0.0)
    assert [list(series.samples(taken)) for series in SERIES if series.name == "held_events"] == [[(("apply", "0"), 0)]]
