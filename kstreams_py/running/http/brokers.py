"""Names the brokers that are away, from the reasons of the workers that wait for them: one outage is one entry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_ADDRESS: Final = r"(?:[\w.-]+|\[[\da-fA-F:.]+\]):\d+"

_CONNECTION: Final = re.compile(
    rf"(?:(?<![\w/.-])(?:\w+://)?({_ADDRESS})/(\d+|bootstrap)|\b(?:GroupCoordinator|TxnCoordinator): ({_ADDRESS})): "
)
"""How librdkafka names the broker of a connection: address and id; for a bootstrap address, the id is unknown."""

_NO_BROKER: Final = re.compile(r"\bno Kafka broker answers at (.+?)(?: \(.+\))?: start one")
"""How this package names the bootstrap addresses of a cluster that does not answer."""

_CLUSTER: Final = re.compile(r"\Acluster '[^']*': ")


class WorkerWaiting(NamedTuple):
    """A worker that waits for a broker, and its reason as text; "" if it is not known."""

    slot: int
    processor: str
    why: str


class BrokerOutage(NamedTuple):
    """What does not answer, as a sentence, and the workers that wait for it."""

    what: str
    workers: tuple[WorkerWaiting, ...]


def find_outages(waiting: Sequence[WorkerWaiting]) -> list[BrokerOutage]:
    """Returns the brokers that are away, each with the workers that wait for it, in the order of the workers.

    A reason that names no broker, such as a time-out, counts for its cluster's broker if other reasons name only one.
    """
    clusters: dict[str, list[WorkerWaiting]] = {}
    for each in waiting:
        found = _CLUSTER.match(each.why)
        clusters.setdefault(found[0] if found else "", []).append(each)
    return [outage for cluster, workers in clusters.items() for outage in _of_cluster(cluster, workers)]


def _of_cluster(cluster: str, workers: Sequence[WorkerWaiting]) -> list[BrokerOutage]:
    ids: dict[str, str] = {}
    named: dict[str, list[WorkerWaiting]] = {}
    for each in workers:
        address, number = _broker(each.why)
        named.setdefault(address, []).append(each)
        ids[address] = number or ids.get(address, "")
    if len(named) == 2 and "" in named:
        del named[""]
        (address,) = named
        named = {address: list(workers)}
    return [BrokerOutage(f"{cluster}{_describe(each, ids[each], of)}", tuple(of)) for each, of in named.items()]


def _broker(why: str) -> tuple[str, str]:
    """Returns the address and the id of the broker that a reason names, each "" if the reason does not name it."""
    if found := _CONNECTION.findall(why):
        address, number, coordinator = found[-1]
        return address or coordinator, "" if number == "bootstrap" else number
    found_none = _NO_BROKER.search(why)
    return (found_none[1], "") if found_none else ("", "")


def _describe(address: str, number: str, workers: Sequence[WorkerWaiting]) -> str:
    if not address:
        why = next((each.why for each in workers if each.why), "")
        return "a broker does not answer" + (f" ({_CLUSTER.sub('', why)})" if why else "")
    if "," in address:
        return f"no broker at {address} answers"
    return f"broker {number} at {address} does not answer" if number else f"the broker at {address} does not answer"
