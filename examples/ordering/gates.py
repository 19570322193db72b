"""A consumer: applies each event of a flight once and in order, so that it has the state that the front end left."""

import kstreams_py as ks

graph = ks.Graph("gates", errors="gates.errors")
events = graph.topic("flights.events", key=ks.String(), value=ks.Json())
flights = graph.topic("gates.flights", key=ks.String(), value=ks.Json(), config={"cleanup.policy": "compact"})


@graph.ordered(events, to=flights, state=ks.State("flights"))
def apply(event, step, state):
    flight = state.get(step.key, {"gate": None, "bags": 0})
    flight["bags"] += event.get("bags", 0)
    if "gate" in event:
        flight["gate"] = event["gate"]
    if "departed" in event:
        flight["gate"] = None
    state.put(step.key, flight)
    return flight
