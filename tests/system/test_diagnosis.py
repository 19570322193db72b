"""Who has only the page and /metrics can say which processor is behind, why, and what to do; then it is well again.

Each test makes something go wrong in a graph that runs on a real broker, looks at what is found, and removes the cause.
The remedy of each finding is that of the table (`Site.findings`).
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from tests.system.command import command
from tests.system.harness import Cluster, wait_until
from tests.system.site import Site

GRAPH = """
import os, signal, time
from pathlib import Path

import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")

def fails():
    return Path({flag!r}).exists()

@graph.map(graph.topic("{name}.calm.in"), to=graph.topic("{name}.calm.out"))
def calm(value):
    return value

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"), {options})
def odd(value):
{body}
    return value
"""

Run = Callable[..., Any]


class Case:
    """A graph of two processors, of which `odd` misbehaves while `fails`; `calm` is in the same processes."""

    def __init__(self, directory: Path, name: str, cluster: Cluster) -> None:
        self.directory, self.name, self.cluster = directory, name, cluster
        self.flag = directory / "fails"
        self.flag.touch()
        self.graph = directory / "odd_graph.py"

    def write_graph(self, body: str, options: str = "", *, partitions: int = 1) -> None:
        """`body` is that of the function of `odd`, `options` are those of its decorator."""
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        self.graph.write_text(GRAPH.format(name=self.name, flag=str(self.flag), options=options, body=lines))
        inputs = [f"{self.name}.{end}" for end in ("in", "out", "calm.in", "calm.out")]
        self.cluster.create(*inputs, partitions=partitions)
        self.cluster.create(f"{self.name}.errors")

    def write(self, *values: bytes, to: str = "in", partition: int = 0) -> None:
        self.cluster.write(f"{self.name}.{to}", values, partition=partition)

    def outputs(self, of: str = "out") -> int:
        return len(self.cluster.values(f"{self.name}.{of}"))

    @contextmanager
    def run(self, *options: object, settings: Settings) -> Iterator[Site]:
        """The run, once it is ready and nothing is found."""
        arguments = ("run", self.graph, *(options or ("--slot", 0)), "--http", "127.0.0.1:0")
        with command(self.directory, *arguments, environment=settings.as_environment()) as running:
            site = Site(running)
            site.await_page("/readyz", 200)
            site.await_findings({})
            yield site
            running.send(signal.SIGTERM)
            assert running.wait() == 0, running.text


@pytest.fixture
def case(tmp_path: Path, name: str, cluster: Cluster) -> Case:
    return Case(tmp_path, name, cluster)


def test_function_that_hangs_is_named_with_its_line_and_the_other_processor_goes_on(
    case: Case, settings: Callable[..., Settings]
) -> None:
    case.write_graph("while fails():\n    time.sleep(0.05)")
    limits = settings(livez_timeout_ms=5_000, transaction_timeout_ms=120_000, session_timeout_ms=120_000)
    with case.run(settings=limits) as site:
        case.write(*[b"v"] * 500)
        where = r"slot 0: odd has made no progress: it is in odd \(odd_graph.py, line 1\d\) \(\d+ s\)"
        because = rf"^odd is behind by \d+ records, at 0 a second, because {where}$"
        site.await_findings({("stuck", "odd"): rf"^{where}$", ("behind_state", "odd"): because})
        site.await_page(
            "/livez", 503, r"^slot 0: odd has made no progress: it is in odd \(odd_graph.py, line 1\d\) since "
        )
        case.write(b"w", to="calm.in")
        wait_until(lambda: case.outputs("calm.out") == 1, "the other processor goes on")
        still = site.sums("still_seconds", "processor")
        assert still["odd",] > 5
        assert still["calm",] < 5
        lags = {("calm",): 0, ("odd",): 500}
        wait_until(lambda: site.sums("lag_records", "processor") == lags, "each lag is known")
        case.flag.unlink()
        site.await_findings({})
        site.await_page("/livez", 200, "^ok$")
        site.await_page("/readyz", 200, "^ok$")
        wait_until(lambda: case.outputs() == 500, "nothing is lost, nothing is doubled")


@pytest.mark.long  # in the quick tier, test_health.py has the finding, test_retries.py the pause
def test_service_that_is_away_is_named_with_its_error_while_the_partition_waits(
    case: Case, settings: Callable[..., Settings]
) -> None:
    retry = 'retry=ks.Retry(attempts=3, backoff="10ms..20ms", then="pause")'
    case.write_graph('if fails():\n    raise ConnectionError("no prices today")', retry, partitions=2)
    with case.run(settings=settings(session_timeout_ms=60_000)) as site:
        case.write(*[b"v"] * 300, partition=1)
        what = r"slot 0: odd is retrying: partition 1 is paused after \d+ attempts: ConnectionError: no prices today"
        because = rf"^odd is behind by 300 records, at 0 a second, because {what}$"
        site.await_findings({("retrying", "odd"): f"^{what}$", ("behind_state", "odd"): because})
        assert (site.get("/livez")[0], site.get("/readyz")[0]) == (200, 200), "a restart would not help"
        wait_until(lambda: site.sums("retries_total", "processor")["odd",] > 500, "many attempts")
        assert site.sums("worker_state", "processor", "state") == {("calm", "running"): 1, ("odd", "retrying"): 1}
        attempts = site.sums("retries_total")[()]
        counted = r"[\d,]+ more failed attempts of processor odd in \d+ s, last partition 1 is paused after \d+ "
        site.running.await_text(counted)
        lines = [line for line in site.running.text.splitlines() if "no prices today" in line]
        assert len(lines) < attempts / 10
        case.flag.unlink()
        site.await_findings({})
        wait_until(lambda: case.outputs() == 300, "all are processed")


@contextmanager
def written_steadily(case: Case, values: int, seconds: float) -> Iterator[None]:
    """Writes so many values to each partition of the input again and again, with `seconds` between."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(seconds):
            for partition in (0, 1):
                case.write(*[b"v"] * values, partition=partition)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.long  # in the quick tier, one that hangs explains a lag, and test_health.py has this finding
def test_function_that_is_slower_than_its_input_is_named_as_the_reason_of_the_lag(
    case: Case, settings: Callable[..., Settings]
) -> None:
    case.write_graph("if fails():\n    time.sleep(0.02)", partitions=2)
    with case.run(settings=settings(session_timeout_ms=60_000)) as site:
        with written_steadily(case, 200, 1.0):
            why = r"^odd is behind by [\d,]+ records, at \d+ a second, because its function takes (9|10)\d% of the time"
            site.await_findings({("behind_function", "odd"): why})
            lags = site.sums("lag_records", "processor")
            assert (lags["calm",], lags["odd",] > 500) == (0, True)
        case.flag.unlink()
        site.await_findings({})


def failure_lines(site: Site) -> list[str]:
    """The complete lines about failures for which there was no price."""
    return [line for line in site.running.text.split("\n")[:-1] if "no price in" in line]


def count_failures(lines: Sequence[str]) -> int:
    """How many failures lines write or count."""
    counted = [re.search(r"([\d,]+) more failed steps of processor odd in \d+ s, last ", line) for line in lines]
    return sum(int(found[1].replace(",", "")) if found else 1 for found in counted)


@pytest.mark.long  # in the quick tier, test_folding.py counts, and test_terminal.py a command
def test_burst_of_failures_is_counted_with_the_newest_shown_until_it_ends(
    case: Case, settings: Callable[..., Settings]
) -> None:
    case.write_graph('if fails():\n    raise ValueError(f"no price in {value!r}")')
    with case.run(settings=settings(session_timeout_ms=60_000)) as site:
        case.write(*(b"%d" % number for number in range(2_000)))
        wait_until(lambda: site.sums("dead_letters_total", "processor")["odd",] == 2_000, "all fail")
        newest = site.status()["dead_letters"][0]
        assert (newest["processor"], newest["slot"]) == ("odd", 0)
        assert newest["text"].startswith("ValueError: no price in b'1999' ")
        case.flag.unlink()
        case.write(b"good")
        wait_until(lambda: case.outputs() == 1, "the next one is well")
        site.await_findings(
            {
                ("dead_letters", "odd"): r"^odd: 2,000 failed steps since the run started, the last \d+ s ago$",
                ("waiting", None): rf"^2,000 dead letters wait in {case.name}\.errors$",
            }
        )
        wait_until(lambda: {each.level for each in site.findings()} == {"warning"}, "it is no longer bad")
        wait_until(lambda: count_failures(failure_lines(site)) == 2_000, "each is written or counted")
        lines = failure_lines(site)
        assert "no price in b'1999'" in lines[-1]
        assert len(lines) < 50, "\n".join(lines)  # 6, and 2 more for each time that the worker stood still for long


@pytest.mark.long  # in the quick tier, test_outages.py has the state of the worker, and test_health.py its finding
def test_broker_that_is_away_is_one_finding_and_the_log_stays_short(
    tmp_path: Path, name: str, settings: Callable[..., Settings]
) -> None:
    with EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
        case = Case(tmp_path, name, Cluster(kafka.bootstrap_servers))
        case.write_graph("pass", partitions=2)
        limits = settings(bootstrap_servers=kafka.bootstrap_servers, session_timeout_ms=60_000)
        with case.run("--workers", 2, settings=limits) as site, written_until(case) as stop:
            wait_until(lambda: case.outputs() > 0, "records flow")
            before = len(site.running.text.splitlines())
            stop()
            # a cluster's only broker, killed, would skip markers at its restart: docs/exactly-once.md, section 14
            assert kafka.terminate(0)
            what = rf"^(broker 0|the broker) at {kafka.bootstrap_servers} does not answer: it affects calm, odd$"
            site.await_findings({("broker_away", None): what})
            assert site.get("/livez") == (200, "ok\n"), "a restart would not help"
            site.await_page("/readyz", 503, "(?m)^slot 0: odd is broker away$")
            threading.Event().wait(OUTAGE_SECONDS)
            kafka.restart(0)
            site.await_findings({})
            site.await_page("/readyz", 200, "^ok$")
            case.write(b"last")
            case.write(b"last", partition=1)
            wait_until(lambda: case.cluster.values(f"{name}.out").count(b"last") == 2, "both workers go on")

            def lines() -> list[str]:
                return site.running.text.splitlines()[before:]

            # the progress line asks for the ends of the inputs at intervals, and is among those that were away
            end = re.compile(r"answers again: a broker was away for \d+ s, \d+ attempts")
            wait_until(lambda: sum(map(bool, map(end.search, lines()))) == 2, "both workers say that it is over")
            assert len(lines()) < 40, "\n".join(lines())


OUTAGE_SECONDS = 15.0
"""An outage in which a worker makes hundreds of attempts."""


@contextmanager
def written_until(case: Case) -> Iterator[Callable[[], None]]:
    """Writes to both partitions of the input; gives the function that stops it."""
    with ExitStack() as stack:
        stack.enter_context(written_steadily(case, 5, 0.1))
        yield stack.close


def test_slot_that_another_process_took_is_named_until_this_run_is_started_again(
    case: Case, settings: Callable[..., Settings]
) -> None:
    case.write_graph("pass", partitions=2)
    limits = settings(session_timeout_ms=60_000)
    with case.run("--workers", 2, settings=limits) as site:
        other = ("run", case.graph, "--slot", 0)
        with command(case.directory, *other, environment=limits.as_environment()) as taker:
            found = r"^slot 0 is replaced: another worker has taken the slot of \S+ over"
            site.await_findings({("replaced", None): found})
            site.await_page("/readyz", 503, r"(?m)^slot 0 is replaced: ")
            assert site.get("/livez") == (200, "ok\n"), "a restart by a probe would take the slot back, and so on"
            states = site.sums("worker_state", "processor", "slot", "state")
            assert states == {
                (processor, slot, state): 1
                for processor in ("calm", "odd")
                for slot, state in (("0", "replaced"), ("1", "running"))
            }
            case.write(b"v")
            case.write(b"v", partition=1)
            wait_until(lambda: case.outputs() == 2, "both go on")
            taker.send(signal.SIGTERM)
            assert taker.wait() == 0, taker.text
    with case.run("--workers", 2, settings=limits) as site:
        assert site.sums("up", "slot") == {("0",): 1, ("1",): 1}


@pytest.mark.long  # in the quick tier, test_supervisor.py has how a worker ends
def test_worker_that_is_killed_again_and_again_is_named_with_how_it_ends(
    case: Case, settings: Callable[..., Settings]
) -> None:
    case.write_graph("if fails():\n    os.kill(os.getpid(), signal.SIGKILL)")
    with case.run("--workers", 1, settings=settings(session_timeout_ms=60_000)) as site:
        case.write(b"v")
        site.await_kinds({("killed", None)})
        (what,) = [each.what for each in site.findings() if each.kind == "killed"]
        killed = r"^slot 0 was restarted \d+ times, the last time after: SIGKILL$"
        assert re.search(killed, what)
        case.flag.unlink()
        site.await_findings({("killed", None): killed})
        wait_until(lambda: case.outputs() == 1, "the record is processed")
        assert site.sums("restarts_total")[()] >= 3


def test_input_that_a_dead_producer_hides_is_named_with_its_transactional_id(
    case: Case, settings: Callable[..., Settings]
) -> None:
    case.write_graph("pass")

    def producer() -> ck.Producer:
        identity = {"transactional.id": f"{case.name}.billing", "transaction.timeout.ms": 300_000}
        made = ck.Producer({"bootstrap.servers": case.cluster.bootstrap_servers, **identity})
        made.init_transactions(30)
        return made

    with case.run(settings=settings(session_timeout_ms=60_000)) as site:
        case.write(b"before")
        dead = producer()
        dead.begin_transaction()
        dead.produce(f"{case.name}.in", b"never committed", partition=0)
        assert dead.flush(30) == 0
        case.write(b"after", b"after")
        name = re.escape(case.name)
        where = rf"{name}.in\[0\] is hidden by producer \d+ epoch 0 \({name}.billing\) from offset 1, "
        what = rf"^slot 0: odd sees no new records for \d+ s: {where}\d+ s old: its coordinator will end it$"
        site.await_findings({("hidden", "odd"): what})
        hidden = site.sums("hidden_seconds", "processor")
        assert (hidden["calm",], hidden["odd",] >= 10) == (0, True)
        assert (site.sums("lag_records", "processor")["odd",], case.outputs()) == (0, 1)
        assert "readers of committed records have seen nothing" not in site.running.text, "it is logged from 60 s on"
        producer()  # the next start of that program ends the transaction
        site.await_findings({})
        wait_until(lambda: case.outputs() == 3, "what was hidden is processed")
