"""Says what a job does and why it waits, in words that a person can act on."""

from __future__ import annotations

from math import ceil

from kstreams_py.jobs.cluster.commands import JobId, Scheduler
from kstreams_py.jobs.cluster.planner import demands
from kstreams_py.jobs.cluster.shares import Demand, divide
from kstreams_py.jobs.cluster.state import JobPhase, Replica
from kstreams_py.printable import count_of


def describe_job(replica: Replica, name: JobId) -> str:
    """Returns what `job list` prints of a job: its phase, its peers, and why it waits."""
    job, peers, why = replica.jobs[name], replica.peers_of(name), explain(replica, name)
    running = f", {count_of(len(peers), 'peer')}" if peers else ""
    return f"{name}  {job.phase}{running}{f': {why}' if why else ''}"


def explain(replica: Replica, name: JobId) -> str:
    """Returns why a job does not run, and what would start it; "" if it runs or was ended by a command."""
    job = replica.jobs[name]
    if job.why:
        return job.why
    if job.phase is JobPhase.STARTING:
        missing = [task.id for task in job.left if not replica.ready_peers_of(name, task.id)]
        return f"waits until a peer is ready for {', '.join(missing)}"
    return _explain_waiting(replica, name) if job.phase is JobPhase.WAITING else ""


def _explain_waiting(replica: Replica, name: JobId) -> str:
    peers, everything = len(replica.peers), demands(replica)
    own = next(each for each in everything if each.job == name)
    tasks = count_of(own.minimum, "task")
    if peers < own.minimum:
        return f"it has {tasks}, and the cluster has {count_of(peers, 'peer')}: {_more(own.minimum - peers)}"
    if replica.scheduler is Scheduler.GREEDY:
        running = next((each.job for each in everything if each.is_active), None)
        return "" if running is None else f"job {running} has all peers until it ends"
    return _explain_shares(replica, [each for each in everything if each.is_active or each.job == name], own)


def _explain_shares(replica: Replica, rivals: list[Demand], own: Demand) -> str:
    """Says which share would be too small if a job ran beside the running ones, its own or another job's."""
    peers, of = len(replica.peers), dict(zip(rivals, divide(len(replica.peers), rivals), strict=True))
    short = own if of[own] < own.minimum else next((each for each in rivals if of[each] < each.minimum), own)
    tasks = count_of(short.minimum, "task")
    if short is not own:
        found = [f"the share of job {short.job} would fall to {of[short]}, and it has {tasks}"]
    elif replica.scheduler is Scheduler.PERCENTAGE:
        found = [f"{own.weight:g} % of {count_of(peers, 'peer')} are {of[own]}, and it has {tasks}"]
    else:
        found = [f"its share of {count_of(peers, 'peer')} is {of[own]}, and it has {tasks}"]
    more = next((more for more in range(1, 10 * (peers + own.minimum)) if _fits(peers + more, rivals)), None)
    remedies = [] if more is None else [_more(more)]
    if replica.scheduler is Scheduler.PERCENTAGE and (percentage := _find_percentage(peers, rivals, own)) is not None:
        remedies.append(f"or {percentage} %")
    return ": ".join([*found, ", ".join(remedies)]) if remedies else found[0]


def _fits(peers: int, rivals: list[Demand]) -> bool:
    counts = divide(peers, rivals)
    return all(count >= each.minimum for each, count in zip(rivals, counts, strict=True))


def _find_percentage(peers: int, rivals: list[Demand], own: Demand) -> int | None:
    """Returns the smallest whole percentage that would start a job beside the running ones; None if there is none."""
    others = sum(each.weight for each in rivals if each is not own)
    for percentage in range(ceil(own.weight) + 1, int(100 - others) + 1):
        changed = own._replace(weight=percentage)
        if _fits(peers, [changed if each is own else each for each in rivals]):
            return percentage
    return None


def _more(count: int) -> str:
    return f"start {count_of(count, 'more peer')}"
