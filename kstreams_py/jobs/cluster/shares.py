"""How many peers each job gets: the schedulers, as a division of the peers among jobs.

Peers are divided by Webster's divisors: each next peer goes to the job with the largest `weight / (2 * peers + 1)`
(Balinski and Young, "Fair Representation", 1982). So no job loses a peer when another peer joins the cluster, as
happens with largest remainders. Equal weights are the round robin scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from kstreams_py.jobs.cluster.commands import JobId, Scheduler


class Demand(NamedTuple):
    """What a job needs, in the order of submission.

    - `minimum`: its tasks that are not complete; each needs a peer.
    - `maximum`: how many peers it can use.
    - `weight`: its share relative to the other jobs.
    - `peers`: how many peers it has now.
    """

    job: JobId
    minimum: int
    maximum: float
    weight: float = 1.0
    peers: int = 0

    @property
    def is_active(self) -> bool:
        """Whether it has peers."""
        return self.peers > 0


def divide(peers: int, demands: Sequence[Demand]) -> list[int]:
    """Returns the share of each job, whether that is enough for it or not. Of equal jobs, the earlier one gets more."""
    counts = [0] * len(demands)
    heap = [(-each.weight, index) for index, each in enumerate(demands)]
    heapify(heap)
    while peers and heap:
        _, index = heap[0]
        counts[index] = count = counts[index] + 1
        peers -= 1
        if count < demands[index].maximum:
            heapreplace(heap, (-demands[index].weight / (2 * count + 1), index))
        else:
            heappop(heap)
    return counts


def share(
    peers: int,
    demands: Sequence[Demand],
    scheduler: Scheduler,
    *,
    drops_last: bool = False,
    joins_running: bool = False,
) -> dict[JobId, int]:
    """Returns how many peers each job gets, without jobs that get none: never fewer than it has tasks.

    - `drops_last`: whether, of the jobs that may be dropped, the last submitted one is dropped, instead of the first.
    - `joins_running`: with the greedy scheduler, whether the job that runs gets all peers that it can use, and not only
      the peers that it began with.
    """
    fitting = [each for each in demands if each.minimum <= peers]
    if scheduler is Scheduler.GREEDY:
        return _share_greedily(peers, fitting, joins_running)
    found, before = _share_by_weight(peers, fitting, drops_last), {each.job for each in demands if each.is_active}
    for _ in fitting:
        if found.keys() == before:
            break
        # the jobs that get peers now are dropped after all others: the next plan must come to the same result
        before = {*found}
        fitting = [each._replace(peers=found.get(each.job, 0)) for each in fitting]
        found = _share_by_weight(peers, fitting, drops_last)
    return found


def _share_by_weight(peers: int, fitting: Sequence[Demand], drops_last: bool) -> dict[JobId, int]:
    kept, dropped = [*fitting], list[Demand]()
    while short := _short(counts := divide(peers, kept), kept):
        dropped.append(_droppable(kept, short)[-1 if drops_last else 0])
        kept.remove(dropped[-1])
    # jobs that can use few peers may leave enough for one that was dropped while there were more jobs
    for each in sorted(dropped, key=fitting.index):
        more = sorted([*kept, each], key=fitting.index)
        if peers - sum(counts) >= each.minimum and not _short(again := divide(peers, more), more):
            kept, counts = more, again
    return {each.job: count for each, count in zip(kept, counts, strict=True)}


def _short(counts: Sequence[int], demands: Sequence[Demand]) -> list[Demand]:
    return [each for each, count in zip(demands, counts, strict=True) if count < each.minimum]


def _share_greedily(peers: int, fitting: Sequence[Demand], joins_running: bool) -> dict[JobId, int]:
    """Returns the one job that gets peers: it keeps its peers, or gets all that it can use when it begins."""
    for each in sorted(fitting, key=lambda each: not each.is_active):
        if each.is_active and not joins_running:
            return {each.job: each.peers}
        return {each.job: int(min(peers, each.maximum))}
    return {}


def _droppable(fitting: Sequence[Demand], short: Sequence[Demand]) -> Sequence[Demand]:
    """Returns the candidates, one of which is dropped so that the other jobs get more peers.

    While a job that has peers is short, waiting jobs are dropped first: a job never ends because another one waits.
    """
    if not any(each.is_active for each in short):
        return short
    waiting_short = [each for each in short if not each.is_active]
    return waiting_short or [each for each in fitting if not each.is_active] or short
