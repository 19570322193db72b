"""Builds a run on a real cluster: one slot of a graph in this process, or a supervisor of several."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from kstreams_py.errors import Replaced, WorkerStuck
from kstreams_py.formats.registries import open_registry
from kstreams_py.formats.registry import Registry
from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS, Processor
from kstreams_py.graph.loading import load, show_command, show_target
from kstreams_py.graph.source import InspectedSource
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.processing.dead_letters.waiting import WaitingCount
from kstreams_py.processing.topics import check_topics, describe_idle_slots
from kstreams_py.processing.topics import create_topics as create_graph_topics
from kstreams_py.running.peer_graphs import Shown, graphs_of
from kstreams_py.running.pipe import report_drained, report_writer
from kstreams_py.running.reports import Report, inputs_of, show_totals
from kstreams_py.running.slot import Slot
from kstreams_py.running.status import RunStatus, SlotStatus
from kstreams_py.running.supervisor import Supervisor, run_both
from kstreams_py.running.terminal import logs
from kstreams_py.running.waiting import WaitingLetters
from kstreams_py.running.watch import Watch
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment, open_tracing
from kstreams_py.steps.tracing import Tracing

if TYPE_CHECKING:
    from kstreams_py.running.terminal.progress import Progress

logger = logging.getLogger(__name__)

GARBAGE_THRESHOLD: Final = 100_000
"""New objects between two garbage collections in a worker. A fetch creates ten thousand records, none in a cycle.

With Python's default of 700, collections took a tenth of a worker's time (measured).
"""

DRAIN_EXTRA: Final = 5.0
"""Seconds beyond drain_timeout_ms after which workers are killed."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StoppedEarly(KeyboardInterrupt):
    """A SIGTERM came before a slot's loops, or a run's workers, were started: there is nothing to drain.

    As a KeyboardInterrupt, it ends a wait for a broker, or the import of a graph, immediately.
    """


Observe = Callable[[RunStatus], None]
"""Takes the newest status of a run."""


class Run(Protocol):
    """A graph that runs from `run` to `stop`, once."""

    def run(self, on_start: Callable[[], None], /) -> None:
        """Checks the topics, starts the workers, calls `on_start`, waits for the workers' end. Raises their failure."""

    def stop(self) -> None:
        """Lets the workers commit what they have processed, then end. Any thread may call this, even before `run`."""

    def own_process(self) -> None:
        """Installs signal handlers that stop the run. Main thread only."""


class SlotRun:
    """A run of one slot in this process. It reports to the supervisor that started it, or else to the terminal.

    - `create`: create missing topics first.
    - `partitions`: the number of partitions of new topics, if nothing else decides it.
    - `background`: the run is part of a program: it has no supervisor and logs its progress.
    """

    def __init__(
        self,
        graph: Graph,
        number: int,
        settings: Settings,
        *,
        create: bool = False,
        partitions: int = DEFAULT_PARTITIONS,
        background: bool = False,
    ) -> None:
        tracing = None if open_tracing(settings) is None else self._open_tracing
        self._cluster = KafkaCluster(settings)
        environment = Environment(
            self._cluster, _registry(settings), settings, tracing=tracing, target=show_target(graph)
        )
        self._slot = Slot(graph, number, environment)
        self._number = number
        self._settings = settings
        self._create = create
        self._partitions = partitions
        self._background = background
        self._graph = graph
        self._provider: object = None
        """The run's tracer provider, once the run has started."""

    def stop(self) -> None:
        """Lets every loop commit what it has processed, then end."""
        self._slot.stop()

    def own_process(self) -> None:
        """Drains on SIGTERM and Ctrl-C; a Ctrl-C after that ends the process. Collects garbage less often.

        Before the loops start, a signal ends the run: see `end_early`.
        """
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)

        def ask(signum: int, _: object) -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if not self._slot.has_begun:
                end_early(signum)
            logger.info("%s: draining", signal.Signals(signum).name)
            self._slot.stop()

        for signum in SIGNALS:
            signal.signal(signum, ask)

    def run(self, on_start: Callable[[], None], /) -> None:
        """Runs the slot. Calls `on_start` at each report; the first comes as soon as the loops run.

        Raises the same as `Slot.run`, and WorkerStuck.
        """
        logs.set_context(graph=self._graph.name, slot=self._number)
        write = None if self._background else report_writer()
        try:
            with exporting(self._graph, self._settings, background=self._background) as self._provider:
                if write is None:
                    with observing(self._graph, self._settings) as observe:
                        self._run_alone(on_start, observe)
                else:
                    self._run_under_supervisor(write, on_start)
        finally:
            self._cluster.close()

    def _open_tracing(self, graph: str, processor: Processor | JobTask, slot: int) -> Tracing:
        tracing = open_tracing(self._settings, self._provider)
        assert tracing is not None
        return tracing(graph, processor, slot)

    def _run_alone(self, on_start: Callable[[], None], observe: Observe | None) -> None:
        note_start(self._graph)
        timeout, began_at = self._settings.stuck_timeout_ms, time.monotonic()
        watch = Watch(self._number, timeout)
        newest: Sequence[Report] = ()
        with open_progress(background=self._background) as progress:

            def show(reports: Sequence[Report]) -> None:
                nonlocal newest
                on_start()
                newest = reports
                slot = SlotStatus(self._number, os.getpid(), tuple(reports), began_at=began_at)
                status = RunStatus((slot,), time.monotonic())
                progress.show(status)
                if observe is not None:
                    observe(status)
                if found := watch.look(reports):
                    limit = f"stuck_timeout_ms ({timeout})"
                    raise WorkerStuck(f"slot {self._number}: {found.why}; it ends after {limit}: start it again")

            try:
                self._slot.run(show, create=self._create, partitions=self._partitions)
            except Replaced as error:
                raise Replaced(f"{error}; {run_both([self._number])}") from error
        note_totals(self._graph, newest, are_inputs_done=self._slot.are_inputs_done)

    def _run_under_supervisor(self, write: Callable[[Sequence[Report]], None], on_start: Callable[[], None]) -> None:
        orphaned = False

        def report(reports: Sequence[Report]) -> None:
            nonlocal orphaned
            on_start()
            try:
                if not orphaned:
                    write(reports)
            except BrokenPipeError:
                orphaned = True
                logger.warning("the supervisor has ended: draining")
                self._slot.stop()

        with suppress(StoppedEarly):
            self._slot.run(report, create=self._create, partitions=self._partitions)
        report_drained(are_inputs_done=self._slot.are_inputs_done)


class SupervisedRun:
    """A run with a worker process for each slot.

    - `target`: the graph's name, as for `kstreams run`.
    - `create`: create missing topics first.
    - `partitions`: the number of partitions of new topics, if nothing else decides it.
    - `background`: the run is part of a program: it logs its progress.
    """

    def __init__(
        self,
        target: str,
        slots: Sequence[int],
        settings: Settings,
        *,
        create: bool = False,
        partitions: int = DEFAULT_PARTITIONS,
        background: bool = False,
    ) -> None:
        self._target = target
        self._started = False
        self._slots = max(slots) + 1  # other machines run the lower ones
        self._settings = settings
        self._create = create
        self._partitions = partitions
        self._background = background
        self._supervisor = supervise(target, slots, settings)

    def stop(self) -> None:
        """Lets all workers drain."""
        self._supervisor.stop()

    def own_process(self) -> None:
        """Drains on a first SIGTERM or Ctrl-C, kills the workers on a second. Before they start, see `end_early`."""

        def ask(signum: int, _: object) -> None:
            if not self._started:
                end_early(signum)
            for each in SIGNALS:
                signal.signal(each, lambda *_: self._supervisor.kill())
            logger.info("%s: draining", signal.Signals(signum).name)
            self._supervisor.stop()

        for signum in SIGNALS:
            signal.signal(signum, ask)

    def run(self, on_start: Callable[[], None], /) -> None:
        """Runs the workers. Before they start, raises UserMistake for the graph or its topics; later, WorkersFailed."""
        check_tracing(self._settings)
        graph = load(self._target)
        graph.validate()
        with observing(graph, self._settings) as observe:
            self._check(graph)
            note_start(graph)
            self._started = True
            on_start()
            newest: Sequence[Report] = ()
            with open_progress(background=self._background) as progress:

                def keep(reports: Sequence[Report]) -> None:
                    nonlocal newest
                    newest = reports

                def note(status: RunStatus) -> None:
                    progress.show(status)
                    if observe is not None:
                        observe(status)

                self._supervisor.run(keep, note, progress.write)
            note_totals(graph, newest, are_inputs_done=self._supervisor.are_inputs_done)

    def _check(self, graph: Graph) -> None:
        """Checks the topics before the workers start, so that a mistake is reported once."""
        if not graph.uses_topics:
            return
        cluster = KafkaCluster(self._settings)
        try:
            if self._create:
                create_graph_topics(graph, cluster, self._partitions)
            found = check_topics(graph, cluster)
        finally:
            cluster.close()
        if idle := describe_idle_slots(graph, found, self._slots):
            logger.warning("%s", idle)


def note_start(graph: Graph) -> None:
    """Logs that a graph has no topics, or which processors have no dead-letter topic.

    Called once per run, because each slot would log the same.
    """
    if not graph.uses_topics:
        logger.info("graph %s reads and writes no topic: this run needs no Kafka broker", graph.name)
    if names := [each.id for each in graph.processors if each.errors is None]:
        logger.info(
            "without a dead-letter topic: %s: a record for which a function raises is dropped with a warning: "
            'errors="%s.errors" keeps it', ", ".join(names), graph.name,
        )  # fmt: skip


def note_totals(graph: Graph, reports: Sequence[Report], *, are_inputs_done: bool) -> None:
    """Logs what a run without topics has done, from its last reports."""
    if graph.uses_topics or not reports:
        return
    names = {
        name for each in reports for name in each.sources if isinstance(graph.channels[name].source, InspectedSource)
    }
    is_kept = any(inputs_of(reports, name)["refused"] for name in names)
    how = f"; `{show_command(graph, 'sources list')}` prints the refused ones" if is_kept else ""
    why = "all inputs are done" if are_inputs_done else "the run has ended"
    logger.info("%s: %s%s", why, show_totals(reports), how)


def open_progress(*, background: bool) -> Progress:
    """Returns the display of a run's progress. It draws no table in a program, or if the log is JSON."""
    from kstreams_py.running.terminal.progress import Progress  # noqa: PLC0415, Rich is slow to import

    return Progress(live=not background and logs.log_format() == "text", dress=logs.dress)


@contextmanager
def observing(graph: Shown, settings: Settings) -> Iterator[Observe | None]:
    """Serves a run's endpoints inside the block; yields a function that takes the run's status, or None without `http`.

    Raises SettingsError if the address cannot be bound, MissingSoftware without prometheus-client.
    """
    if settings.http is None:
        yield None
        return
    # import http.server and prometheus-client only if they are needed
    from kstreams_py.running.http.endpoints import Endpoints  # noqa: PLC0415
    from kstreams_py.running.http.observed import ObservedRun  # noqa: PLC0415
    from kstreams_py.running.http.server import serving  # noqa: PLC0415

    observed = ObservedRun(shows_errors=settings.http_errors)
    with (
        serving(settings.http, Endpoints(graph, observed, settings.livez_seconds).answer, settings.http_hosts),
        _counting(graph, settings) as waiting,
    ):
        yield lambda status: observed.note(replace(status, waiting=waiting()))


@contextmanager
def _counting(shown: Shown, settings: Settings) -> Iterator[Callable[[], Mapping[str, WaitingCount]]]:
    """Counts dead letters inside the block, with clients of its own: workers do not wait for its requests.

    Yields a function that returns the newest counts.
    """
    cluster = KafkaCluster(settings)
    environment = Environment(cluster, _registry(settings), settings)
    counters = [WaitingLetters(graph, environment) for graph in graphs_of(shown)]
    try:
        yield lambda: {topic: count for each in counters for topic, count in each.read().items()}
    finally:
        for each in counters:
            each.end()
        cluster.close()


def _registry(settings: Settings) -> Registry:
    return open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)


def check_tracing(settings: Settings) -> None:
    """Checks tracing before any worker starts. Raises MissingSoftware or SettingsError: both would end each worker."""
    if open_tracing(settings) is not None:
        from kstreams_py.running.span_export import check_exporters  # noqa: PLC0415

        check_exporters()


@contextmanager
def exporting(graph: Graph, settings: Settings, *, background: bool = False) -> Iterator[object]:
    """Exports a run's spans inside the block; yields their tracer provider, or None if the run is not traced.

    - `background`: the run is part of a program, whose tracer provider is left alone.

    Raises the same as check_tracing().
    """
    if not settings.tracing:
        yield None
        return
    from kstreams_py.running import span_export  # noqa: PLC0415

    with span_export.exporting(graph.name, background=background) as provider:
        yield provider


def run_in_foreground(run: Run) -> None:
    """Runs until Ctrl-C, SIGTERM or the workers' end, then restores signal handlers. Raises the same as `run`."""
    with _signals_restored(), suppress(StoppedEarly):
        run.own_process()
        run.run(lambda: None)


def end_early(signum: int) -> NoReturn:
    """Ends a run that has not begun: raises StoppedEarly for a SIGTERM, and KeyboardInterrupt for a Ctrl-C."""
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    logger.info("%s: stopped before it began", signal.Signals(signum).name)
    raise StoppedEarly


@contextmanager
def _signals_restored() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            if handler is not None:  # None: it was not installed from Python, and cannot be restored
                signal.signal(signum, handler)


def worker_command(target: str) -> Callable[[int], list[str]]:
    """Returns the command line of a slot's worker. Settings and secrets are in the environment, so `ps` hides them.

    Without -P, a file in the current directory would shadow a module of Python or of a library.
    """
    return lambda slot: [sys.executable, "-P", "-m", "kstreams_py", "run", target, "--slot", str(slot)]


def standby_command(target: str) -> list[str]:
    """Returns the command line of a standby process, which becomes a worker when it reads its slot number."""
    return [sys.executable, "-P", "-m", "kstreams_py", "standby", target]


def supervise(
    target: str,
    slots: Sequence[int],
    settings: Settings,
    environment: Mapping[str, str] | None = None,
    *,
    has_standby: bool = True,
) -> Supervisor:
    """Returns a supervisor of the workers of a graph. `environment`: variables in addition to the settings."""
    return Supervisor(
        worker_command(target),
        slots,
        drain_seconds=settings.drain_timeout_ms / 1000 + DRAIN_EXTRA,
        environment=settings.as_environment() | dict(environment or {}),
        standby=standby_command(target) if has_standby else None,
        stuck_timeout_ms=settings.stuck_timeout_ms,
    )


def awaited_slot() -> int | None:
    """Waits in a standby process for its slot number; returns None if the supervisor has ended."""
    line = sys.stdin.readline()
    return int(line) if line else None
