from gates import graph

from kstreams_py.testing import TestDriver

GATE = ({"gate": "C12"}, 1, None)
BAGS = ({"bags": 81}, 2, 1)
DEPARTED = ({"departed": "EWR"}, 5, 2)


def send(driver, event, number, prev):
    """Sends an event as a worker of `kstreams order` does: with its id, and that of the flight's event before it."""
    headers = [("ks-event-id", b"%d" % number)]
    if prev is not None:
        headers.append(("ks-event-prev", b"%d" % prev))
    driver.send("flights.events", event, key="UA1545", headers=headers)


def test_events_that_overtake_each_other_and_late_copies_lead_to_the_same_state():
    with TestDriver(graph) as driver:
        for event in (DEPARTED, GATE, DEPARTED, BAGS, GATE, BAGS):
            send(driver, *event)
        driver.run()
        assert driver.values("gates.flights") == [
            {"gate": "C12", "bags": 0},
            {"gate": "C12", "bags": 81},
            {"gate": None, "bags": 81},
        ]
        assert driver.state("flights") == {"UA1545": {"gate": None, "bags": 81}}
        assert driver.dead_letters() == []
