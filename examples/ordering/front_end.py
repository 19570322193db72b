"""A front end: changes flights, and queues the events of each change in the same atomic step.

`python front_end.py events.db UA1545 B6725`; as many as you like, at once and on several machines (with Redis).
"""

import sys
from contextlib import closing

from kstreams_py.ordering import Ordering


def dispatch(ordering: Ordering, flight: str) -> None:
    """Three changes of a flight: its state, the main event, and the events of what belongs to it."""
    ordering.enqueue(flight, {"gate": "C12", "bags": 0}, {"gate": "C12"})
    ordering.enqueue(flight, {"gate": "C12", "bags": 81}, {"boarded": 180}, sub_events=[{"bags": 50}, {"bags": 31}])
    ordering.enqueue(flight, {"gate": None, "bags": 81}, {"departed": "EWR"})


if __name__ == "__main__":
    with closing(Ordering(sys.argv[1])) as store:
        for name in sys.argv[2:]:
            dispatch(store, name)
