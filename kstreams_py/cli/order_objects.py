"""`kstreams order stopped`, `resume`, `accept`: show objects that are stuck in a consumer, and decide on them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kstreams_py.cli.options import AsJson, Bootstrap, Config, OfProcessor, Target, Yes, confirm, open_graph
from kstreams_py.cli.streams import echo
from kstreams_py.errors import UserMistake
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.topology import Graph
from kstreams_py.operations.order import Decided, Missed, ObjectState, Operator, find_objects, ordered_processors
from kstreams_py.ordering.decisions import Verb

Object = Annotated[str, typer.Argument(metavar="OBJECT", help="the object, by its name")]
OneProcessor = Annotated[str | None, typer.Option("--processor", help="its id, if several processors apply events")]
Seconds = Annotated[float, typer.Option("--wait", help="how many seconds to wait for the processor's workers", min=0)]


def stopped(
    target: Target,
    processor: OfProcessor = None,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Show the objects that are stuck in the processors that apply events. Exit status 1 if there are any.

    An object is stuck when it is stopped at an event that contradicts its order, or waits for an event that has
    not arrived. Needs READ on the changelog.
    """
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        found = [
            each
            for one in ordered_processors(graph, processor)
            for each in find_objects(graph, one, environment)
            if not each.goes_on
        ]
    now = time.time()
    for each in found:
        echo(json.dumps(_as_fields(each, now), ensure_ascii=False) if as_json else _describe(each, now))
    if found:
        raise typer.Exit(1)
    if not as_json:
        echo("all objects go on")


def resume(
    target: Target,
    name: Object,
    processor: OneProcessor = None,
    seconds: Seconds = 30.0,
    yes: Yes = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Let a stopped object go on: the event that contradicts its order stays a dead letter, later ones are applied.

    The processor's workers must run. Events that became dead letters because the object was stopped are sent to the
    topic again.
    """
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        operator = Operator(graph, _one(graph, processor), environment, name)
        missed = operator.missed()
        if operator.object.goes_on and not missed:
            raise UserMistake(f"object {name!r} goes on: `kstreams order stopped` shows those that do not")
        if operator.object.held and operator.object.stop is None and not missed:
            raise UserMistake(
                f"object {name!r} is not stopped, it waits for event {operator.object.held[0].prev}: if that is lost, "
                "`kstreams order accept` lets it go on without it"
            )
        echo(f"{_describe(operator.object, time.time())}; {_resent(operator, missed)}")
        confirm("Let it go on with the event that follows, and send these events again?", yes=yes)
        _finish(operator.decide(Verb.RESUME, 0, seconds), operator, name)


def accept(
    target: Target,
    name: Object,
    processor: OneProcessor = None,
    seconds: Seconds = 30.0,
    yes: Yes = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Let an object go on without the event that it waits for, or with the one that contradicts its order.

    The oldest waiting event, or else the oldest refused one, is applied directly after the newest applied event; any
    events between the two are lost. The processor's workers must run. The command is refused while `kstreams order
    resume` has events to send again.
    """
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        operator = Operator(graph, _one(graph, processor), environment, name)
        if not operator.catch_up(seconds):
            echo(
                f"the processor's workers have not read all events of partition {operator.object.partition} after "
                f"{seconds:,.0f} s: run the command again once they have: the object may go on with one of these"
            )
            raise typer.Exit(1)
        if operator.object.goes_on and not operator.missed():
            raise UserMistake(f"object {name!r} goes on: `kstreams order stopped` shows those that do not")
        event = operator.choose()
        missed = operator.missed(event)
        echo(f"{_describe(operator.object, time.time())}; {_resent(operator, missed)}")
        question = f"Apply event {event} after event {operator.object.newest}, and give up what may be between them?"
        confirm(question, yes=yes)
        _finish(operator.decide(Verb.ACCEPT, event, seconds), operator, name)


def _one(graph: Graph, named: str | None) -> Processor:
    """Returns the only processor that applies events, or the one with this id. Raises UserMistake."""
    found = ordered_processors(graph, named)
    if len(found) > 1:
        raise UserMistake(f"name one of {', '.join(each.id for each in found)} with --processor")
    return found[0]


def _resent(operator: Operator, missed: Sequence[Missed]) -> str:
    if not missed and not operator.keeps_refused:
        return "its refused events are lost, because no dead-letter topic is declared (errors=)"
    return f"{len(missed):,} of its events will be sent again"


def _finish(decided: Decided | None, operator: Operator, name: str) -> None:
    if decided is None:
        echo(
            f"the decision on {name!r} is written, but the processor's workers have not read it yet: once they run, "
            "`kstreams order resume` resends the events that the object has missed"
        )
        raise typer.Exit(1)
    if not decided.is_done:
        echo(f"{_describe(operator.object, time.time())}; it has changed meanwhile: decide again")
        raise typer.Exit(1)
    echo(f"object {name!r} goes on; {decided.sent:,} of its events were sent again")


def _describe(found: ObjectState, now: float) -> str:
    shown = f"{found.processor}: {found.name.decode(errors='replace')!r}, after event {found.newest},"
    if found.stop is not None:
        where = f", {max(0, now - found.stop.at):,.0f} s ago at offset {found.stop.offset}" if found.stop.at else ""
        return f"{shown} is stopped{where}: {found.stop.why}"
    if found.held:
        first = found.held[0]
        return (
            f"{shown} waits for event {first.prev}: {len(found.held):,} events are held, the first of them "
            f"{first.id}, for {max(0, now - first.held_at):,.0f} s"
        )
    return f"{shown} goes on"


def _as_fields(found: ObjectState, now: float) -> dict[str, Any]:
    return {
        "processor": found.processor,
        "object": found.name.decode(errors="replace"),
        "partition": found.partition,
        "newest": found.newest,
        "stopped": None if found.stop is None else found.stop.why,
        "waits_for": found.held[0].prev if found.held else None,
        "held": [each.id for each in found.held],
        "held_seconds": max((now - each.held_at for each in found.held), default=None),
    }
