"""Shows the demo in the terminal: phases, counts and kills, then the checks. Prints plain lines elsewhere."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kstreams_py.demo.checks import Check
from kstreams_py.demo.recoveries import Kill
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.errors import SettingsError
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.metrics import Rate
from kstreams_py.running.output import STDERR, Write
from kstreams_py.running.terminal import logs
from kstreams_py.running.terminal.progress import Display
from kstreams_py.settings import Settings


class Screen(Display):
    """The output of the demo. `counts` is live in a terminal; call it inside the context.

    - `what`: the things that are written, in the plural.
    """

    def __init__(self, console: Console, what: str = "departures") -> None:
        super().__init__(console, transient=True)
        self._what = what
        self._console = console
        self._rates: defaultdict[str, Rate] = defaultdict(Rate)

    def say(self, text: str) -> None:
        """Prints one line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def begin(self) -> float:
        """Prints that the workers have joined. Returns the time from which the screen counts seconds."""
        self.say(f"the workers have joined: writing {self._what}")
        self._entered_at = time.monotonic()
        return self._entered_at

    def killed(self, kill: Kill, number: int, of: int) -> None:
        """Prints a line for a kill, the `number`th of `of`."""
        self._hit("SIGKILL", f" {number} of {of}", kill)

    def frozen(self, frozen: Kill, seconds: float) -> None:
        """Prints a line for a worker that is frozen."""
        self._hit("SIGSTOP", f" for {seconds:g} s", frozen)

    def _hit(self, signal: str, what: str, kill: Kill) -> None:
        after = kill.at - self._entered_at
        self.say(f"  {after:5.1f} s  [red]{signal}[/]{what}: slot {kill.slot} (process {kill.pid})")

    def recovered(self, seconds: Sequence[float | None]) -> None:
        """Prints a line for the times between the kills and the next commits of their slots, if there are any."""
        if known := [each for each in seconds if each is not None]:
            most = f"the median is {median(known):.1f} s, the longest {max(known):.1f} s"
            self.say(f"from a kill to the slot's next commit: {most}")

    def counts(self, counts: Mapping[str, int], written: int, records: int) -> None:
        """Shows the number of committed records by topic, and how many records have been written."""
        now = time.monotonic()
        rates = {topic: self._rates[topic].of(n, now) for topic, n in counts.items()}

        def write() -> None:
            seen = ", ".join(f"{n:,} {topic}" for topic, n in counts.items())
            self.say(f"  {now - self._entered_at:5.1f} s  {written:,} of {records:,} {self._what}; {seen}")

        self.refresh(lambda: _drawn(counts, rates, (self._what, written, records)), write)

    def table(self, checks: Sequence[Check]) -> None:
        """Prints the checks, a line for each."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        table.add_column("what")
        table.add_column("expected", justify="right")
        table.add_column("found", justify="right")
        for check in checks:
            mark = Text("ok", "green") if check.ok else Text("WRONG", "bold red")
            found = Text(f"{check.found:,}", "" if check.ok else "bold red")
            table.add_row(mark, check.what, f"{check.expected:,}", found)
        self._console.print()
        self._console.print(table)
        self._console.print()

    def report(self, path: Path, title: str, paragraphs: Iterable[str]) -> None:
        """Prints paragraphs, each on its own line, and writes them to a Markdown file."""
        texts = [*paragraphs]
        path.write_text("\n\n".join([f"# {title}", *texts]) + "\n", encoding="utf-8")
        for line in (*texts, f"report: {path}"):
            self.say(line)


def _drawn(counts: Mapping[str, int], rates: Mapping[str, float], progress: tuple[str, int, int]) -> RenderableType:
    what, written, records = progress
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("committed, as seen by a reader")
    table.add_column("records", justify="right", min_width=10)
    table.add_column("records/s", justify="right", min_width=10)
    for topic, n in counts.items():
        table.add_row(topic, f"{n:,}", f"{rates.get(topic, 0.0):,.0f}")
    bar = Table.grid(padding=(0, 1))
    bar.add_row(what, ProgressBar(total=records, completed=written, width=40), f"{written:,} of {records:,}")
    return Group(Text(), bar, Text(), table)


LOG: Final = "run.log"


def log_writer(log: Path, screen: Screen) -> Write:
    """Returns a function that takes the lines of a worker, and its slot.

    Standard error, which has the logs, goes to the file; standard output goes to the screen.
    """

    def write(output: int, slot: str, lines: Sequence[bytes]) -> None:
        if output == STDERR:
            with log.open("ab") as file:  # a single appending write, so that lines of different threads do not mix
                file.write(b"".join(logs.dress(output, slot, line) + b"\n" for line in lines))
        else:
            screen.write(output, slot, lines)

    return write


def prepare(output: Path, names: Iterable[str]) -> Path:
    """Creates the directory if necessary, and removes the files and directories with these names.

    Raises SettingsError if nothing can be written to the directory.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path in (output / name for name in names):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"cannot write to the directory {output} ({error}): name another with --output") from None
    return output.resolve()


@contextmanager
def open_cluster(output: Path) -> Iterator[tuple[Settings, KafkaCluster]]:
    """Yields settings and cluster of a temporary broker, with a temporary directory of schemas."""
    with (
        logged_to(output / LOG),
        tempfile.TemporaryDirectory(prefix="kstreams-schemas-") as schemas,
        EmbeddedKafka() as kafka,
    ):
        settings = Settings.load(bootstrap_servers=kafka.bootstrap_servers, schema_directory=Path(schemas))
        with closing(KafkaCluster(settings)) as cluster:
            yield settings, cluster


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Writes this process's log to the workers' log file, because the screen uses the terminal."""
    root, handler = logging.getLogger(), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = before
        handler.close()
