"""One slot: a worker process with a loop for each processor and one for all tasks, which drain together."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Final

from kstreams_py.errors import DrainTimeout, Fatal, FunctionExited, KStreamsError, Replaced, Retriable, Unavailable
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.environment import job_environment
from kstreams_py.jobs.job import Job
from kstreams_py.log_fields import answers, away, repeated
from kstreams_py.metrics import EventCounts, LongestHeld, WorkerState, lags
from kstreams_py.processing.starts.refusals import check_starts
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.processing.worker import Worker, open_worker
from kstreams_py.records import TopicPartition
from kstreams_py.running.health import AWAY
from kstreams_py.running.hidden import HiddenRecords
from kstreams_py.running.jobs import JobLoop
from kstreams_py.running.places import PLACE_AFTER, place_of
from kstreams_py.running.reports import Reading, Report
from kstreams_py.running.terminal import logs
from kstreams_py.running.watch import Stillness
from kstreams_py.steps import calls
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)


class HeldEvents:
    """Watches the events that wait in one slot.

    - `seconds`: the wait after which a warning is logged; another follows each time the wait has doubled.
    - `wall`: returns seconds since 1970.
    - `target`: how a command names the graph.
    """

    def __init__(self, seconds: float, wall: Callable[[], float] = time.time, target: str = "GRAPH") -> None:
        self._seconds = seconds
        self._target = target
        self._wall = wall
        self._warned: dict[str, tuple[LongestHeld, float]] = {}
        """By processor: the event of the last warning, and the age in seconds at which the next one is due."""

    def look(self, processor: str, counts: EventCounts) -> Mapping[str, float]:
        """Returns the values of Report.events. Warns of the event that has waited longest."""
        longest, now = counts.longest_held, self._wall()
        seconds = 0.0 if longest is None else max(0.0, now - longest.since)
        if longest is not None:
            self._warn(processor, longest, seconds, counts.held_now)
        return {
            "held": counts.held_now,
            "stopped": counts.stopped_now,
            "held_seconds": round(seconds, 1),
            "held_limit": self._seconds,
        }

    def _warn(self, processor: str, longest: LongestHeld, seconds: float, held: int) -> None:
        known, due = self._warned.get(processor, (None, 0.0))
        if seconds < (due if known == longest else self._seconds):
            return
        self._warned[processor] = longest, 2 * seconds
        logger.warning(
            "%s: event %d of %r, at %s, has waited for %.0f s for event %d, which has not arrived (%d events wait): if "
            "that is a dead letter, `kstreams order resume %s %s` sends it; if it is lost, `kstreams order accept` "
            "goes on without it", processor, longest.id, longest.object,
            longest.place, seconds, longest.prev, held, self._target, shlex.quote(longest.object),
            extra=repeated(f"events that wait in {processor}", longest.object),
        )  # fmt: skip


REPORT_INTERVAL = 1.0
"""Seconds between two reports."""

RETENTION_SHORT: Final = 24 * 60
"""Minutes. With a shorter offsets.retention.minutes, a job that is stopped overnight may lose its committed offsets."""


class _Loop:
    """The worker of one processor, the thread that runs it, and the time for which it has been stuck."""

    def __init__(self, worker: Worker, run: Callable[[Worker], None]) -> None:
        self.worker = worker
        self.id = worker.processor.id
        self.thread = threading.Thread(target=run, args=(worker,), name=self.id, daemon=True)
        self._stillness = Stillness()

    def look(self, state: WorkerState) -> tuple[float, str]:
        """Returns the seconds since the loop last turned or began another step, and the place where it is stuck.

        The time for which the worker waits for another system does not count: a restart would not help. Once that
        system answers, the time starts again at 0.
        """
        if not self.thread.is_alive():
            return 0.0, ""
        if state in AWAY:
            self._stillness = Stillness()
            return 0.0, ""
        # one turn may run many slow steps: a loop that begins the next one is not stuck
        call = self.worker.runner.oldest
        mark = (self.worker.turned_at, self.worker.ledger.positions) if call is None else call[0]
        seconds = self._stillness.look(mark, time.monotonic())
        if not seconds:
            return 0.0, ""
        return round(seconds, 1), place_of(call[1] if call else self._frame) if seconds >= PLACE_AFTER else ""

    def readings(self) -> list[Reading]:
        """Returns what the processor reads."""
        return [Reading(self.id, self.worker.ledger.positions, self.worker.consumer.highs)]

    def _frame(self) -> FrameType | None:
        return calls.frame_of(self.thread.ident)


class Slot:
    """A graph in one process: each processor in a thread with its own consumer and producer, all tasks in another."""

    def __init__(self, graph: Graph, slot: int, environment: Environment) -> None:
        self._graph = graph
        self._slot = slot
        self._environment = environment
        self._cluster = environment.cluster
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self.has_begun = False
        """Whether the loops have been started: before that, there is nothing to drain."""
        self.are_inputs_done = False
        """Whether the job has ended because its sources have no input left."""
        self._lags: dict[str, dict[TopicPartition, int]] = {}
        """The lags of each processor's partitions; a processor is missing if they are unknown."""
        self._brokers_away = dict[str, str]()
        """By name of a cluster whose brokers do not answer: why the newest request to it failed."""
        self._hidden = HiddenRecords(environment.cluster)
        self._held = HeldEvents(environment.settings.held_timeout_ms / 1000, target=environment.target)

    def stop(self) -> None:
        """Lets every loop commit what it has processed, then end."""
        self._stopping.set()

    def run(
        self,
        report: Callable[[Sequence[Report]], None],
        *,
        create: bool = False,
        partitions: int = DEFAULT_PARTITIONS,
    ) -> None:
        """Checks the graph, its topics and its processors' starts, then runs until `stop` or the end of a loop.

        - `report`: called with the reports of all processors and tasks every REPORT_INTERVAL seconds. An exception of
          `report` ends the loops and is raised here.
        - `create`: create missing topics first.
        - `partitions`: the number of partitions of new topics, if nothing else decides it.

        Raises the first failure of any loop, or DrainTimeout if a loop does not end within drain_timeout_ms.
        """
        self._graph.validate()
        if self._graph.uses_topics:
            if create:
                create_topics(self._graph, self._cluster, partitions)
            check_starts(self._graph, self._environment, check_topics(self._graph, self._cluster))
            self._warn()
        workers = [
            open_worker(self._graph, processor, self._slot, self._environment, self._stopping)
            for processor in self._graph.processors
        ]
        loops = self._open_loops(workers)
        self.has_begun = True
        for loop in loops:
            loop.thread.start()
        self._watch_cluster(loops)
        try:
            report(self._reports(loops))  # immediately: the supervisor measures silence from the first report
            while not self._stopping.wait(REPORT_INTERVAL):
                report(self._reports(loops))
        except BaseException:
            self._drain(loops, lambda _: None)
            raise
        late = self._drain(loops, report)
        if not late:  # a loop that failed is reported, too: what it gave back counts
            report(self._reports(loops))
        if self._failures:
            raise self._failures[0]
        if late:
            limit = self._environment.settings.drain_timeout_ms / 1000
            raise DrainTimeout(
                f"{', '.join(late)} did not end within drain_timeout_ms ({limit:g} s): raise it above the longest call "
                "of a function"
            )
        if self._environment.settings.leave_on_stop:
            self._leave(workers)

    def _open_loops(self, workers: Sequence[Worker]) -> list[_Loop | JobLoop]:
        loops: list[_Loop | JobLoop] = [_Loop(worker, self._run) for worker in workers]
        if self._graph.tasks:
            environment = job_environment(self._graph, self._slot, self._environment)
            loops.append(JobLoop(self._graph, self._slot, environment, self._run_job))
        return loops

    def _watch_cluster(self, loops: Sequence[_Loop | JobLoop]) -> None:
        """Starts the threads that make requests besides the workers, if the graph reads topics."""
        if not self._graph.groups:
            return
        threading.Thread(target=self._keep_lags, args=(loops,), name="lag", daemon=True).start()
        threading.Thread(target=self._keep_asking, name="hidden", daemon=True).start()
        written = {each.cluster: each.written[0] for each in self._graph.processors if each.cluster}
        for cluster, topic in written.items():
            threading.Thread(target=self._keep_looking, args=(cluster, topic), name=cluster, daemon=True).start()

    def _drain(self, loops: Sequence[_Loop | JobLoop], report: Callable[[Sequence[Report]], None]) -> list[str]:
        """Tells the loops to end, and waits up to drain_timeout_ms.

        Returns the ids of the loops that did not end, each with the place where it is stuck.
        """
        self._stopping.set()
        deadline = time.monotonic() + self._environment.settings.drain_timeout_ms / 1000
        for loop in loops:
            while loop.thread.is_alive() and (left := deadline - time.monotonic()) > 0:
                loop.thread.join(min(left, REPORT_INTERVAL))
                if loop.thread.is_alive():
                    report(self._reports(loops))
        return [self._name_with_place(loop) for loop in loops if loop.thread.is_alive()]

    def _name_with_place(self, loop: _Loop | JobLoop) -> str:
        place = next((report.place for report in self._reports([loop]) if report.place), "")
        return f"{loop.id} (in {place})" if place else loop.id

    def _run(self, worker: Worker) -> None:
        self._run_loop(worker.processor.id, worker.run)

    def _run_job(self, job: Job) -> None:
        def goes_on() -> bool:
            # once the sources of the job have no input left, the processors go on with what the job has written
            self.are_inputs_done = job.is_exhausted
            return bool(self._graph.processors) and self.are_inputs_done

        self._run_loop("job", lambda: job.run(self._stopping.is_set), goes_on)

    def _run_loop(self, name: str, run: Callable[[], None], goes_on: Callable[[], bool] = lambda: False) -> None:
        """Runs a loop. Its end stops the others, unless it ends without an error and `goes_on` returns True."""
        returned, stops = False, True
        try:
            logs.set_context(graph=self._graph.name, processor=name, slot=self._slot)
            run()
            returned, stops = True, not goes_on()
        except BaseException as raised:
            returned = True
            error = raised
            if isinstance(raised, SystemExit | KeyboardInterrupt):  # no signal raises these in this thread
                named = f"{name}: its loop was ended by {raised!r}"
                error = FunctionExited("; ".join(getattr(raised, "__notes__", [])) or named)
                error.__cause__ = raised
            if self._failures:  # `run` raises the first, so only further ones are logged as errors
                logger.error("%s: %s: %s", name, type(error).__name__, error)
            else:
                logger.info("%s: ended by %s", name, type(error).__name__)
            self._failures.append(error)
        finally:
            if not returned:  # a client may raise something that `except` does not catch; threading prints it
                self._failures.append(Fatal(f"{name}: its loop was ended by its client: see the log"))
            if stops:
                self._stopping.set()

    def _leave(self, workers: Sequence[Worker]) -> None:
        """Leaves the groups, so that their partitions move immediately. Each worker has closed its consumer by then."""
        for i, worker in enumerate(workers):
            try:
                left = self._cluster.leave(worker.consumer)
            except KStreamsError as error:
                logger.warning(
                    "slot %d did not leave the groups of %s: its partitions wait until session_timeout_ms: %s",
                    self._slot,
                    ", ".join(each.processor.id for each in workers[i:]),
                    error,
                )
                return
            done = "left its group" if left else "had no membership of its own to leave"
            logger.info("%s: %s", worker.processor.id, done)

    def _reports(self, loops: Sequence[_Loop | JobLoop]) -> list[Report]:
        """Returns the reports. Makes no request: an unreachable broker must not delay reports, signals or draining."""
        reports = []
        for loop in loops:
            if isinstance(loop, JobLoop):
                reports += self._reports_of_tasks(loop)
                continue
            worker, state = loop.worker, self._state_of(loop.worker)
            still_seconds, place = loop.look(state)
            events = worker.runner.events
            report = Report(
                loop.id,
                self._slot,
                worker.counters.as_dict(),
                0,
                still_seconds,
                place,
                state=state,
                open_seconds=worker.committer.session.open_seconds,
                measures=worker.counters.measures() | (events.measures() if events else {}),
                failure=worker.committer.newest_failure,
                why=self._why_away(worker) or worker.why,
                events=self._held.look(loop.id, events) if events else None,
            )
            reports.append(self._with_inputs(report, worker.ledger.cursors))
        return reports

    def _reports_of_tasks(self, loop: JobLoop) -> list[Report]:
        reports = {each.processor: each for each in loop.reports(self._draining)}
        for reading in loop.readings():
            report = self._with_inputs(reports[reading.name], reading.positions)
            if (why := self._brokers_away.get("", "")) and not self._draining:
                report = replace(report, state=WorkerState.BROKER_AWAY, why=why)
            reports[reading.name] = report
        return [*reports.values()]

    def _with_inputs(self, report: Report, partitions: Collection[TopicPartition]) -> Report:
        """Returns a report with the lags and the hidden records of the partitions that its processor or task holds."""
        known = self._lags.get(report.processor)
        # right after an assignment, the ends of some partitions are still unknown: their lag is not 0
        of_each = {tp: (known or {}).get(tp) for tp in partitions}
        complete = known is not None and None not in of_each.values()
        hidden = self._hidden.of(partitions)
        return replace(
            report,
            lag=(report.lag or 0) + sum(lag or 0 for lag in of_each.values()) if complete else None,
            lags=of_each,
            hidden_seconds=hidden.seconds,
            hidden=hidden.text,
            hidden_partitions=hidden.partitions,
        )

    @property
    def _draining(self) -> WorkerState | None:
        return WorkerState.DRAINING if self._stopping.is_set() else None

    def _state_of(self, worker: Worker) -> WorkerState:
        if any(isinstance(failure, Replaced) for failure in self._failures):
            return WorkerState.REPLACED
        if self._stopping.is_set():
            return WorkerState.DRAINING
        return WorkerState.BROKER_AWAY if self._why_away(worker) else worker.state

    def _why_away(self, worker: Worker) -> str:
        """Returns why a cluster that the worker needs is away; "" if all answer."""
        away = self._brokers_away
        return away.get("") or away.get(worker.processor.cluster, "")

    def _keep_lags(self, loops: Sequence[_Loop | JobLoop]) -> None:
        """Asks for the ends of the inputs every REPORT_INTERVAL seconds: for lags, hidden records and outages."""
        logs.set_context(graph=self._graph.name, slot=self._slot)
        failures, read = 0, [topic for topics in self._graph.groups.values() for topic in topics]
        while True:
            readings = [each for loop in loops for each in loop.readings()]
            asked = {tp for each in readings for tp in each.positions}
            try:
                # a slot without partitions asks too, to learn whether the broker is away
                ends = self._cluster.ends(asked or {TopicPartition(read[0], 0)})
                self._lags = {each.name: lags(each.positions, ends) for each in readings}
                self._brokers_away.pop("", None)
                self._hidden.look(ends, [each.highs for each in readings], time.monotonic())
                if failures:
                    logger.info("can read the end offsets of the inputs again", extra=answers("ends"))
                failures = 0
            except KStreamsError as error:
                failures += 1
                logger.info("cannot read the end offsets of the inputs: %s", error, extra=away("ends"))
                self._lags = {}
                self._note_away("", error)
            if self._stopping.wait(REPORT_INTERVAL):
                return

    def _keep_looking(self, name: str, topic: str) -> None:
        """Checks every REPORT_INTERVAL seconds whether another cluster answers, in a thread of its own."""
        logs.set_context(graph=self._graph.name, slot=self._slot)
        while not self._stopping.wait(REPORT_INTERVAL):
            try:
                self._cluster.named(name).ends({TopicPartition(topic, 0)})
            except KStreamsError as error:
                self._note_away(name, error)
                logger.warning("outputs wait for cluster %r: %s", name, error, extra=away(f"cluster {name}"))
            else:
                if self._brokers_away.pop(name, None) is not None:
                    logger.info("cluster %r answers again", name, extra=answers(f"cluster {name}"))

    def _note_away(self, cluster: str, error: KStreamsError) -> None:
        """Notes why a cluster is away, if the error says that it is."""
        if isinstance(error, Retriable | Unavailable):
            self._brokers_away[cluster] = str(error)
        else:
            self._brokers_away.pop(cluster, None)

    def _keep_asking(self) -> None:
        """Asks whose transactions hide records, in a thread of its own: each request may take 10 s."""
        while not self._stopping.wait(REPORT_INTERVAL):
            self._hidden.ask(time.monotonic())

    def _warn(self) -> None:
        minutes = self._cluster.offsets_retention_minutes()
        if minutes is not None and minutes < RETENTION_SHORT:
            logger.warning(
                "offsets.retention.minutes is %d: a job that is stopped for longer loses its committed offsets%s",
                minutes,
                ", and ends with status 5 until they are set"
                if self._graph.processors
                else ": its tasks then read their topics again, from the beginning",
            )
        for processor in self._graph.processors:
            if processor.target is not None:
                logger.info("%s: stores rows in %s, by %s", processor.id, processor.target, processor.target.evidence)
            if processor.guarantee.is_transactional and processor.ignores_results:
                logger.info("%s: a sink's side effects may repeat after a crash: use the delivery hash", processor.id)
