"""The problems of a run, with their causes and remedies: one table for /status, the page and the alerts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.names import show_retry
from kstreams_py.jobs.cluster.commands import LeaveReason
from kstreams_py.jobs.cluster.explanations import explain
from kstreams_py.jobs.cluster.state import JobPhase
from kstreams_py.metrics import WorkerState
from kstreams_py.printable import count_of
from kstreams_py.running.health import AWAY, Still, still
from kstreams_py.running.http.brokers import WorkerWaiting, find_outages
from kstreams_py.running.reports import PEER, Report, source_key
from kstreams_py.running.status import RunStatus, SlotStatus

Level = Literal["bad", "warning", "note"]

REMEDIES: Final[Mapping[str, str]] = {
    "stuck": "Its function does not return: set a time limit for its calls; `stuck_timeout_ms` restarts the worker.",
    "silent": "Check whether its process is frozen or a function holds Python's lock; `stuck_timeout_ms` restarts it.",
    "unwatched": "Check whether the machine is overloaded or the process is stopped (SIGSTOP); continue or restart it.",
    "restarting": "Wait: it restarts by itself. If it ends again, fix the cause that is named.",
    "killed": "Find out what kills it: usually the kernel, for lack of memory (`dmesg`, `OOMKilled`); then add memory.",
    "restarts": "Fix the cause of its last end: until then, its work is repeated after each start.",
    "joining": "Wait: joining the group may take `session_timeout_ms`. If it takes longer, check the brokers and log.",
    "retrying": "Fix what its error names (see the log): the step is repeated, and nothing is lost.",
    "broker_away": "Check that the brokers run and this machine reaches them: the worker then continues by itself.",
    "sink_away": "Repair its sink, as its error says: the worker then continues by itself.",
    "source_away": "Repair its source, as its error says: the worker then continues by itself.",
    "pending": "Check what that task waits for: until the input is done, it is neither acknowledged nor read again.",
    "refused": "See `kstreams sources list`, fix the cause, then run `kstreams sources retry`.",
    "refused_requests": "Fix the cause (see the log); then the client sends the request again: its source keeps none.",
    "replaced": "Nothing is lost: another process runs it. Give each its own `--slot`; to run it here, start it again.",
    "spare": "Nothing is wrong: it takes over if a worker ends. To use it, add partitions to inputs without a state.",
    "open_transaction": "Check what its function waits for: read_committed readers see nothing newer until it ends.",
    "hidden": "Check why that producer does not end its transaction: readers wait. If it is dead, see the runbook.",
    "held": "Find the missing event (`kstreams order stopped`); if it is lost, `kstreams order accept` the next one.",
    "stopped": "See `kstreams order stopped`, find who sent the event, then `kstreams order resume` or `accept`.",
    "dead_letters": "See `kstreams dead-letters list`, fix the cause, then run `kstreams dead-letters replay`.",
    "waiting": "Run `kstreams dead-letters list`; `replay` what can succeed now, and `discard` the rest with a reason.",
    "waiting_unknown": "Fix what it names: a topic, or a right to read dead letters and their marks (`kstreams acls`).",
    "dropped": "Declare a dead-letter topic (`errors=`): without one, the records of failed steps are only in the log.",
    "lag_unknown": "Check that the brokers answer and that the worker may read the topic: its lag is unknown.",
    "behind_state": "Fix that first: the lag shrinks once its workers run again.",
    "behind_function": "Make the function faster, or start more workers (`--slots`), up to the number of partitions.",
    "behind_partitions": "Make the function faster, or, without a state, add partitions to the inputs: each has one.",
    "behind_process": "Start more workers (`--slots`): the processors of a slot share one process.",
    "behind_partition": "Choose keys that spread evenly: a partition is processed by one worker only.",
    "behind_input": "Check what writes that topic: a join needs one record of each input.",
    "behind_kafka": "Check the brokers (`kstreams_commit_seconds`), or commit less often (`commit_interval_ms`).",
    "behind": "Open the page of its run (/): it names the cause and the remedy.",
    "no_answer": "Check whether the process runs: its log and its exit status tell why it ended.",
    "job_waits": "Start what it names: until each task of a job has a peer, its inputs are not read.",
    "peer_silent": "Find out what froze it: memory, a CPU limit, its network. The others read again what it had.",
    "peer_unreachable": "Repair the network between the two: each must reach the address of the other.",
    "digests_differ": "Keep the topics `__ks.cluster.*` for a report, and begin a cluster with another name.",
    "log_away": "Check the brokers: peers take no input without the log, and continue by themselves.",
    "catching_up": "Wait; start more workers (`--slots`) if it takes too long.",
}
"""What to do, by the kind of finding; `behind` and `no_answer` are for alerts, which see only the series or nothing."""

_COMMANDS: Final = re.compile(r"kstreams (?:dead-letters|order|sources) [a-z]+|kstreams acls")
"""The commands in REMEDIES to which `Problem.remedy` adds a graph; alert rules use REMEDIES without one."""

RUNBOOK: Final[Mapping[str, str]] = {
    "stuck": "KstreamsStuck",
    "silent": "KstreamsSilent",
    "unwatched": "KstreamsSilent",
    "restarting": "KstreamsSlotDown",
    "killed": "KstreamsRestarts",
    "restarts": "KstreamsRestarts",
    "joining": "KstreamsJoining",
    "retrying": "KstreamsRetrying",
    "broker_away": "KstreamsBrokerAway",
    "sink_away": "KstreamsSinkAway",
    "source_away": "KstreamsSourceAway",
    "pending": "KstreamsOldestPending",
    "refused": "KstreamsRefusedInputs",
    "refused_requests": "KstreamsRefusedInputs",
    "replaced": "KstreamsReplaced",
    "spare": "Spare workers",
    "open_transaction": "KstreamsOpenTransaction",
    "hidden": "KstreamsInputHidden",
    "held": "KstreamsEventsHeld",
    "stopped": "KstreamsObjectsStopped",
    "dead_letters": "KstreamsDeadLetters",
    "waiting": "KstreamsDeadLettersWait",
    "waiting_unknown": "KstreamsDeadLettersWait",
    "dropped": "KstreamsDropped",
    "lag_unknown": "KstreamsLagUnknown",
    "behind_state": "KstreamsBehind",
    "behind_function": "KstreamsBehindByItsFunction",
    "behind_partitions": "KstreamsBehindByItsFunction",
    "behind_process": "KstreamsBehind",
    "behind_partition": "KstreamsBehind",
    "behind_input": "KstreamsBehind",
    "behind_kafka": "KstreamsSlowCommits",
    "behind": "KstreamsBehind",
    "no_answer": "KstreamsNoAnswer",
    "job_waits": "KstreamsJobWaits",
    "peer_silent": "KstreamsPeerSilent",
    "peer_unreachable": "KstreamsPeerUnreachable",
    "digests_differ": "KstreamsDigestsDiffer",
    "log_away": "KstreamsClusterLogAway",
    "catching_up": "KstreamsBehind",
}
"""The section of docs/runbook.md for each kind of finding; the section of an alert has the alert's name."""

SILENT_SHOWN_SECONDS: Final = 600.0
"""Seconds for which a peer that was found silent is reported."""

BEHIND_SECONDS: Final = 10.0
"""A processor is behind if, at its rate, it needs more seconds than this for its lag."""

LAGGING_SECONDS: Final = 10.0
"""Seconds that a lag must last before it counts."""

BUSY: Final = 0.7
"""Functions count as the cause of a lag if they take at least this share of the time."""

OPEN_SECONDS: Final = 10.0
"""The age in seconds from which an open transaction is reported."""

HIDDEN_SECONDS: Final = 60.0
"""Seconds for which other transactions may hide records: Kafka's default transaction timeout."""

FAILED_SECONDS: Final = 300.0
"""Seconds after the last failed step until the failures are only a note."""

RESTARTS: Final = 3
"""The number of restarts from which a slot is reported, if the last is at most RESTART_SECONDS old."""

RESTART_SECONDS: Final = 600.0

RESTARTING_SECONDS: Final = 60.0
"""For this many seconds after the last restart, restarts count as the cause of a lag."""

STATES: Final[Mapping[WorkerState, tuple[Level, str]]] = {
    WorkerState.JOINING: ("note", "joining"),
    WorkerState.RETRYING: ("bad", "retrying"),
    WorkerState.SINK_AWAY: ("bad", "sink_away"),
    WorkerState.SOURCE_AWAY: ("bad", "source_away"),
    WorkerState.RESTARTING: ("warning", "restarting"),
}
"""The reported states of a worker, with level and kind of the finding. All workers share one finding for a broker that
is away.
"""

WAITS: Final[Mapping[WorkerState, str]] = {
    WorkerState.SINK_AWAY: "waits for its sink",
    WorkerState.SOURCE_AWAY: "waits for its source",
}
"""What a worker does in these states."""

KILLED: Final = "SIGKILL"
"""The reason for an end that this package did not cause: something else has killed the worker."""

_ORDER: Final[tuple[Level, ...]] = ("bad", "warning", "note")


class Problem(NamedTuple):
    """A problem of a slot, of a processor, or of a processor in a slot.

    - `kind`: a key of REMEDIES.
    - `affects`: the processors that wait for something outside the run; `slot` and `processor` are then None.
    - `source`: the source whose inputs were refused.
    """

    level: Level
    kind: str
    slot: int | None
    processor: str | None
    what: str
    affects: tuple[str, ...] = ()
    source: str | None = None

    def remedy(self, target: str) -> str:
        """Returns what to do, with commands that name the graph as `target`, or no graph if `target` is empty."""

        def complete(found: re.Match[str]) -> str:
            if self.source is not None and found[0] == "kstreams sources retry":
                return show_retry(target, self.source)
            return f"{found[0]} {target}".rstrip()

        return _COMMANDS.sub(complete, REMEDIES[self.kind])

    @property
    def runbook(self) -> str:
        return RUNBOOK[self.kind]


class Seen(NamedTuple):
    """The observations of a run.

    - `rates`: by (slot, processor), the growth per second of counts, of `step_seconds` and of `lag`.
    - `lagging`: by (slot, processor), seconds since its lag was last 0.
    - `failing`: by (slot, processor), seconds since a step last failed; absent if none has failed.
    - `now`, `at`: monotonic seconds, and seconds since 1970.
    - `still_limit`: seconds without a turn after which a worker counts as not alive.
    - `forgetful`: the sources that keep no refused inputs, such as requests over HTTP.
    """

    status: RunStatus
    rates: Mapping[tuple[int, str], Mapping[str, float]]
    lagging: Mapping[tuple[int, str], float]
    failing: Mapping[tuple[int, str], float]
    now: float
    at: float
    still_limit: float
    forgetful: Collection[str] = ()


def find(processors: Sequence[Processor], seen: Seen) -> list[Problem]:
    """Returns all problems, the worst first."""
    found = [*_still(seen), *_away(processors, seen)]
    found += (each for slot in seen.status.slots for each in _slot(slot, seen))
    for processor in processors:
        reports = [(slot, report) for slot in seen.status.slots for report in _reports(slot, processor.id)]
        found += [*_failed(processor.id, reports, seen), *_spare(processor, reports)]
        read = _Read(processor.id, tuple(map(str, processor.inputs)), is_join=processor.kind == "join")
        found += _behind(read, reports, seen, found)
    for task in _tasks(seen):
        reports = [(slot, each) for slot in seen.status.slots for each in _reports(slot, task)]
        found += _failed(task, reports, seen)
        if topics := {tp.topic: None for _, report in reports for tp in report.lags}:
            found += _behind(_Read(task, tuple(topics)), reports, seen, found)
    found += _of_peers(seen.status)
    found += _refused(seen)
    found += _letters(seen.status)
    return sorted(found, key=lambda each: _ORDER.index(each.level))


class _Read(NamedTuple):
    """The topics that a processor or a task reads. A join reads one record from each at a time."""

    name: str
    topics: tuple[str, ...]
    is_join: bool = False


def _tasks(seen: Seen) -> list[str]:
    """Returns the ids of the tasks over channels."""
    reports = (each for slot in seen.status.slots for each in slot.reports)
    return [*dict.fromkeys(each.processor for each in reports if each.is_task)]


def _reports(slot: SlotStatus, processor: str) -> list[Report]:
    return [] if slot.taken else [each for each in slot.reports if each.processor == processor]


def _still(seen: Seen) -> Iterator[Problem]:
    for each in still(seen.status, seen.now, seen.still_limit):
        yield Problem("bad", _kind_of(each), each.slot, each.processor, f"{each.what} ({each.seconds:.0f} s)")


def _kind_of(each: Still) -> str:
    return "unwatched" if each.slot is None else "silent" if each.processor is None else "stuck"


def _away(processors: Sequence[Processor], seen: Seen) -> Iterator[Problem]:
    """Yields a finding for each broker that is away, with all that it affects. For peers, see `_of_peers`."""
    slots = [slot for slot in seen.status.slots if not slot.taken and not _reports(slot, PEER)]
    waiting = [
        WorkerWaiting(slot.number, report.processor, report.why)
        for slot in slots
        for report in slot.reports
        if slot.state_of(report.processor) is WorkerState.BROKER_AWAY
    ]
    for what, workers in find_outages(waiting):
        waits = {each.processor for each in workers}
        affects = tuple(each for each in (*(each.id for each in processors), *_tasks(seen)) if each in waits)
        numbers = list(dict.fromkeys(each.slot for each in workers))
        where = "" if len(numbers) == len(slots) else f" in {_slots(numbers)}"
        yield Problem("bad", "broker_away", None, None, f"{what}: it affects {', '.join(affects)}{where}", affects)


def _slots(numbers: Sequence[int]) -> str:
    return f"slot{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _slot(slot: SlotStatus, seen: Seen) -> Iterator[Problem]:
    number = slot.number
    if slot.taken:
        yield Problem(
            "bad", "replaced", number, None, f"slot {number} is replaced: {slot.taken.removeprefix('Replaced: ')}"
        )
        return
    if slot.restarts >= RESTARTS and slot.ends and seen.at - slot.ends[-1].at < RESTART_SECONDS:
        why = slot.ends[-1].why
        what = f"slot {number} was restarted {count_of(slot.restarts, 'time')}, the last time after: {why}"
        level: Level = "bad" if seen.at - slot.ends[-1].at < RESTARTING_SECONDS else "warning"
        yield Problem(level, "killed" if why == KILLED else "restarts", number, None, what)
    if slot.pid is None and slot.ends:
        yield Problem("warning", "restarting", number, None, f"slot {number} is restarting, after: {slot.ends[-1].why}")
        return
    for report in slot.reports:
        name, state = report.processor, slot.state_of(report.processor)
        if state in STATES:
            how, kind = STATES[state]
            does = WAITS.get(state, f"is {state}")
            why = f": {report.why}" if report.why else ""
            yield Problem(how, kind, number, name, f"slot {number}: {name} {does}{why}")
        if (report.open_seconds or 0) > OPEN_SECONDS and state is not WorkerState.BROKER_AWAY:
            what = f"slot {number}: a transaction of {name} is open for {report.open_seconds:.0f} s"
            yield Problem("warning", "open_transaction", number, name, what)
        if report.hidden_seconds and slot.has_reported:
            held, hidden = len(report.lags), report.hidden_partitions
            part = f" of {hidden} of its {held} partitions" if 0 < hidden < held else ""
            what = (
                f"slot {number}: {name} sees no new records{part} for {_time(report.hidden_seconds)}: {report.hidden}"
            )
            yield Problem("bad" if report.hidden_seconds > HIDDEN_SECONDS else "warning", "hidden", number, name, what)
        yield from _waiting(slot, report)
        yield from _pending(slot, report, seen)
        if state is WorkerState.RUNNING and report.lag is None and report.still_seconds <= seen.still_limit:
            yield Problem("note", "lag_unknown", number, name, f"slot {number}: the lag of {name} is not known")


def _waiting(slot: SlotStatus, report: Report) -> Iterator[Problem]:
    """Yields the findings of a processor that applies events."""
    events = report.events
    if events is None or not slot.has_reported:
        return
    number, name = slot.number, report.processor
    if events["held_seconds"] > events["held_limit"]:
        held = count_of(int(events["held"]), "event")
        what = f"slot {number}: {held} of {name} held, the first for {_time(events['held_seconds'])}"
        yield Problem("warning", "held", number, name, what)
    if events["stopped"]:
        what = f"slot {number}: {count_of(int(events['stopped']), 'object')} of {name} stopped by an ordering fault"
        yield Problem("warning", "stopped", number, name, what)


def _pending(slot: SlotStatus, report: Report, seen: Seen) -> Iterator[Problem]:
    """Yields a finding for each source with an old input, unless the task that holds the input has its own finding."""
    waits = {*AWAY, WorkerState.RETRYING}
    ill = {each.processor for each in slot.reports if each.state in waits or each.still_seconds > seen.still_limit}
    for name, each in report.sources.items():
        if each.seconds > each.limit and ill.isdisjoint(each.tasks) and slot.has_reported:
            key = f" (key {each.key})" if each.key else ""
            where = f", in {', '.join(each.tasks)}" if each.tasks else ", and in no task"
            if _reports(slot, PEER):  # only the peers that hold its parts know where the input is
                where = ""
            what = f"slot {slot.number}: an input of {name}{key} is under way for {_time(each.seconds)}{where}"
            yield Problem("warning", "pending", slot.number, next(iter(each.tasks), None), what)


Workers = Sequence[tuple[SlotStatus, Report]]

_FAILED: Final = {"dead_letters": "failed step", "dropped": "dropped step"}


def _failed(name: str, workers: Workers, seen: Seen) -> Iterator[Problem]:
    for kind in ("dead_letters", "dropped"):
        failed = sum(report.counters.get(kind, 0) for _, report in workers)
        if not failed:
            continue
        growth = _growth(kind, name, workers, seen)
        level, how = _how_fast(growth, [seen.failing.get((slot.number, name)) for slot, _ in workers])
        what = f"{name}: {count_of(failed, _FAILED[kind])} since the run started{how}"
        if any(slot.restarts for slot, _ in workers):  # their dead letters wait nevertheless
            what += "; a worker that was restarted may not have reported all"
        yield Problem(level, kind, None, name, what)


def _how_fast(growth: float, ages: Iterable[float | None]) -> tuple[Level, str]:
    """Returns the level of failures, and as text how many more come each second, or how long ago the last one was.

    - `growth`: failures per second.
    - `ages`: for each worker, the seconds since its last failure.
    """
    last = min((age for age in ages if age is not None), default=0.0)
    level: Level = "bad" if growth else "warning" if last <= FAILED_SECONDS else "note"
    return level, f", {growth:.1f} more each second" if growth else f", the last {_time(last)} ago"


def _of_peers(status: RunStatus) -> Iterator[Problem]:
    """Yields the findings of a cluster of peers: its log, its jobs, and its members."""
    peers = [(slot.number, each) for slot in status.slots for each in _reports(slot, PEER) if slot.pid is not None]
    if away := [(number, each) for number, each in peers if each.state is WorkerState.BROKER_AWAY]:
        longest = max(each.heartbeat_seconds or 0.0 for _, each in away)
        where = _slots([number for number, _ in away])
        what = f"the log of the cluster is away: for {_time(longest)} no heartbeat of {where} came back"
        yield Problem("bad", "log_away", None, None, what)
    if (cluster := status.cluster) is None:
        return
    if cluster.diverged:
        what = f"the state of the cluster is another one at {', '.join(cluster.diverged)}: their digests differ"
        yield Problem("bad", "digests_differ", None, None, what)
    if apart := cluster.unreachable:
        pairs = ", ".join(f"{peer} cannot reach {other}" for peer, others in apart.items() for other in others)
        yield Problem("warning", "peer_unreachable", None, None, f"peers do not reach each other: {pairs}")
    for name, job in cluster.replica.open_jobs():
        if why := explain(cluster.replica, name):
            level: Level = "warning" if job.phase is JobPhase.WAITING else "note"
            yield Problem(level, "job_waits", None, None, f"job {name} is {job.phase}: {why}")
    if cluster.silent and cluster.silent_seconds < SILENT_SHOWN_SECONDS:
        silent = cluster.left[LeaveReason.SILENT]
        what = f"{count_of(silent, 'peer')} found silent since the run started, the last, {cluster.silent}, "
        yield Problem("warning", "peer_silent", None, None, what + f"{_time(cluster.silent_seconds)} ago")


def _refused(seen: Seen) -> Iterator[Problem]:
    """Yields a finding for each source with refused inputs."""
    reports = [(slot, report) for slot in seen.status.slots for report in slot.reports]
    for name in dict.fromkeys(name for _, report in reports for name in report.sources):
        if not (refused := int(sum(report.measures.get(f"inputs:refused:{name}", 0) for _, report in reports))):
            continue
        keys = [(slot.number, source_key(name)) for slot in seen.status.slots]
        growth = sum(seen.rates.get(key, {}).get("refused", 0.0) for key in keys)
        level, how = _how_fast(growth, map(seen.failing.get, keys))
        what = f"{name}: {count_of(refused, 'refused input')} since the run started{how}"
        yield Problem(level, "refused_requests" if name in seen.forgetful else "refused", None, None, what, source=name)


def _letters(status: RunStatus) -> Iterator[Problem]:
    """Yields the findings about the dead letters that wait, whichever run has written them."""
    for topic, count in status.waiting.items():
        if count.counted:
            number = "" if count.is_whole else "at least "
            wait = "letter waits" if count.counted == 1 else "letters wait"
            yield Problem("warning", "waiting", None, None, f"{number}{count.counted:,} dead {wait} in {topic}")
        elif count.why:
            what = f"it is not known how many dead letters wait in {topic}: {count.why}"
            yield Problem("note", "waiting_unknown", None, None, what)


def _spare(processor: Processor, workers: Workers) -> Iterator[Problem]:
    running = [(slot, report) for slot, report in workers if slot.pid is not None and slot.has_reported]
    spare = [slot.number for slot, report in running if report.state is WorkerState.SPARE]
    if spare:
        what = f"{_slots(spare)}: {processor.id} has no partition: its inputs have fewer than it has workers"
        yield Problem("note", "spare", spare[0] if len(spare) == 1 else None, processor.id, what)


def _growth(name: str, processor: str, workers: Workers, seen: Seen) -> float:
    return sum(seen.rates.get((slot.number, processor), {}).get(name, 0.0) for slot, _ in workers)


def _behind(read: _Read, workers: Workers, seen: Seen, others: Sequence[Problem]) -> Iterator[Problem]:
    """Yields a finding if a processor or a task is behind, with the first reason that applies.

    Yields none where a broker is away: the finding of the broker names all that it affects.
    """
    name = read.name
    lag = sum(report.lag or 0 for _, report in workers)
    lagging = max((seen.lagging.get((slot.number, name), 0.0) for slot, _ in workers), default=0.0)
    rate = _growth("records_in", name, workers, seen)
    if not lag or lagging < LAGGING_SECONDS or (rate and lag / rate <= BEHIND_SECONDS):
        return
    shrinking = -_growth("lag", name, workers, seen)
    what = f"{name} is behind by {count_of(lag, 'record')}, at {rate:,.0f} a second"
    ill = [each for each in others if _concerns(each, name, workers)]
    if any(each.kind == "broker_away" for each in ill):
        return
    if ill:
        yield Problem("bad", "behind_state", None, name, f"{what}, because {ill[0].what}")
    elif shrinking > 0 and shrinking >= 0.1 * rate:
        yield Problem("note", "catching_up", None, name, f"{what}, and catches up in about {_time(lag / shrinking)}")
    else:
        kind, why = _reason(read, workers, seen, lag)
        yield Problem("bad", kind, None, name, f"{what}, because {why}")


def _concerns(finding: Problem, processor: str, workers: Workers) -> bool:
    """Returns whether a finding may be the cause of the processor's lag."""
    if finding.level == "note" or finding.kind in ("dead_letters", "dropped", "hidden"):
        return False
    if finding.kind.startswith("behind") or (finding.kind in ("restarts", "killed") and finding.level != "bad"):
        return False
    if finding.affects:
        return processor in finding.affects
    slots = [slot.number for slot, _ in workers]
    return finding.processor in (None, processor) and (finding.slot is None or finding.slot in slots)


def _reason(read: _Read, workers: Workers, seen: Seen, lag: int) -> tuple[str, str]:
    """Returns the kind and the text of the reason why a reader is behind although all its workers run."""
    name = read.name
    holding = [(slot, report) for slot, report in workers if report.lags]
    behind = [(slot, report) for slot, report in holding if report.lag] or holding
    lags = {tp: each or 0 for _, report in workers for tp, each in report.lags.items()}
    if read.is_join:
        topics = {topic: sum(each for tp, each in lags.items() if tp.topic == topic) for topic in read.topics}
        if empty := [topic for topic, each in topics.items() if not each]:
            return "behind_input", f"it waits for records of {', '.join(empty)}"
    worst = max(lags, key=lambda tp: lags[tp], default=None)
    if worst is not None and len(lags) > len(read.topics) and lags[worst] > 0.8 * lag:
        return "behind_partition", f"{worst} has {lags[worst] / lag:.0%} of its lag"
    busy = [(seen.rates.get((slot.number, name), {}).get("step_seconds", 0.0), slot, report) for slot, report in behind]
    share = sum(each for each, *_ in busy) / len(busy) if busy else 0.0
    if share >= BUSY:
        spread = any(len({tp.partition for tp in report.lags}) > 1 for _, report in behind)
        why = f"its function takes {min(share, 1.0):.0%} of the time of {count_of(len(behind), 'worker')}"
        return "behind_function" if spread else "behind_partitions", why
    for _, slot, _ in busy:
        shared = {
            each.processor: seen.rates.get((slot.number, each.processor), {}).get("step_seconds", 0.0)
            for each in slot.reports
        }
        if sum(shared.values()) >= BUSY:
            most = max(shared, key=lambda each: shared[each])
            why = f"the functions of slot {slot.number} take all of its time, most of it {most}"
            return "behind_process", why
    return "behind_kafka", "fetches and commits take the time, not its function"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
