"""`kstreams pipeline`: runs the pipelines of a graph on Spark; shows, queries, resets and submits them."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kstreams_py.cli.options import AsJson, Bootstrap, Config, Target, Yes, confirm
from kstreams_py.cli.streams import echo
from kstreams_py.errors import MissingSoftware, SettingsError, UserMistake
from kstreams_py.graph.loading import load
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.foreign_records import parse_json
from kstreams_py.printable import count_of
from kstreams_py.settings import Settings

if TYPE_CHECKING:
    from kstreams_py.spark.pipelines.runs import PipelineRun, Published

# PySpark is optional, and slow to import: the commands import the modules that need it.

logger = logging.getLogger(__name__)

app = typer.Typer(help="The pipelines of a graph: tables that Spark computes from its topics.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="pipelines; by default all of the graph's")]
Master = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master: local[*], spark://..., k8s://..., yarn; local[2] by default"),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="a Spark setting, such as the executors' image; can be repeated"),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="also print what Spark prints, and what it logs")]


@app.command()
def run(
    target: Target,
    names: Names = None,
    once: Annotated[bool, typer.Option("--once", help="run each once; the default")] = False,
    follows: Annotated[
        bool, typer.Option("--follow", help="run each at its interval, until SIGTERM or Ctrl-C")
    ] = False,
    cut_file: Annotated[
        Path | None, typer.Option("--cut", help="run at the cut in this file, written by kstreams cut")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Run pipelines: each run stores its rows, and the cut that they were computed from, in one step.

    A kill at any moment neither loses nor duplicates rows: the next run continues from the cut in the target.
    """
    from kstreams_py.spark.cut_files import read_cut  # noqa: PLC0415
    from kstreams_py.spark.pipelines.driver import check_inputs, follow_all, run_all  # noqa: PLC0415

    if follows and (once or cut_file is not None):
        raise SettingsError(f"--follow makes a new cut for each run: leave out {'--once' if once else '--cut'}")
    graph, pipelines, settings = _chosen(target, names, bootstrap_servers, config)
    given = read_cut(cut_file) if cut_file is not None else None

    def show(pipeline: Pipeline, found: PipelineRun | None) -> None:
        echo(json.dumps(_fields(pipeline, found)) if as_json else _text(pipeline, found), flush=True)

    with _opening(graph, master, conf, verbose=verbose) as open_session:
        check_inputs(graph, pipelines, settings)  # first: Spark takes seconds to start
        if not follows:
            run_all(pipelines, graph, open_session(), settings, show, given)
            return
        session = open_session()
        stopped: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, _: stopped.append(signum))
        follow_all(pipelines, graph, session, settings, show, lambda: bool(stopped))


@app.command("list")
def list_pipelines(target: Target, as_json: AsJson = False) -> None:
    """List the pipelines of a graph."""
    graph, pipelines, _ = _chosen(target, None, None, None)
    for each in pipelines:
        topics = [topic.name for topic in each.inputs]
        fields = {
            "pipeline": each.id,
            "inputs": topics,
            "target": str(each.target),
            "mode": str(each.mode),
            "key": list(each.key),
            "every_seconds": each.every,
        }
        line = f"{each.id}: {', '.join(topics)} to {each.target}, {each.mode}, every {each.every} s"
        echo(json.dumps(fields | {"graph": graph.name}) if as_json else line)


@app.command()
def status(
    target: Target,
    names: Names = None,
    as_json: AsJson = False,
    detail: Annotated[
        bool, typer.Option("--detail", help="also the cut of each run, and its plan if the next one differs")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="write a page with plots of lag and duration, the cuts and the plans")
    ] = None,
    verbose: Verbose = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Show the last runs in each target: number, end, offsets, records, rows, seconds, lag, malformed.

    Lag is the longest time that a new record can have waited: from the previous cut until the rows were staged.
    --json and --detail also show the cut of each run, and its plan, unless the next one differs only in numbers.
    """
    from kstreams_py.spark.pipelines.places import describe_cut  # noqa: PLC0415
    from kstreams_py.spark.pipelines.runner import read_published  # noqa: PLC0415

    if html is not None and as_json:
        raise SettingsError("--html writes a page: leave out --json")
    graph, pipelines, settings = _chosen(target, names, bootstrap_servers, config)
    with _opening(graph, verbose=verbose) as open_session:
        histories = [(pipeline, read_published(pipeline, settings, open_session)) for pipeline in pipelines]
    if html is not None:
        _write_page(html, graph, histories)
        return
    for pipeline, published in histories:
        runs = published.runs if published is not None else ()
        if as_json:
            for each in runs:
                echo(json.dumps(_fields(pipeline, each) | {"cut": _parsed(each.cut), "plan": each.plan}))
            continue
        echo(f"{pipeline.id}: {pipeline.target}{'' if runs else ': no run yet'}")
        if runs:
            echo("  " + "  ".join(f"{name:>{width}}" for name, width in _WIDTHS.items()))
        for each in runs:
            echo(
                "  " + "  ".join(f"{text:>{width}}" for text, width in zip(_cells(each), _WIDTHS.values(), strict=True))
            )
            shown = [*describe_cut(each.cut), *each.plan.splitlines()] if detail else []
            for line in shown:
                echo(f"    {line}")


@app.command()
def reset(
    target: Target,
    name: Annotated[str, typer.Argument(help="the pipeline")],
    yes: Yes = False,
    verbose: Verbose = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Remove a pipeline's table and its runs: the next run starts over. Exit status 1 if the answer is no."""
    from kstreams_py.spark.pipelines.targets import open_target  # noqa: PLC0415

    graph, (pipeline,), settings = _chosen(target, [name], bootstrap_servers, config)
    confirm(f"remove {pipeline.target} with all its rows?", yes=yes)
    with (
        _opening(graph, verbose=verbose) as open_session,
        closing(open_target(pipeline, settings, open_session)) as table,
    ):
        table.reset()
    echo(f"{pipeline.id}: {pipeline.target} was removed")


@app.command()
def sql(
    target: Target,
    query: Annotated[str, typer.Argument(help="a SELECT; each table has the name of its pipeline")],
    limit: Annotated[int, typer.Option("--limit", help="rows to print", min=1)] = 100,
    master: Master = None,
    conf: Conf = None,
    verbose: Verbose = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print the rows of a query over the tables of a graph's pipelines, each row as a JSON object."""
    from kstreams_py.spark.pipelines.frames import query_rows  # noqa: PLC0415
    from kstreams_py.spark.pipelines.runner import read_published  # noqa: PLC0415
    from kstreams_py.spark.pipelines.targets import open_target  # noqa: PLC0415

    graph, pipelines, settings = _chosen(target, None, bootstrap_servers, config)
    with _opening(graph, master, conf, verbose=verbose) as open_session:
        session = open_session()
        for pipeline in pipelines:
            if read_published(pipeline, settings, open_session) is not None:
                with closing(open_target(pipeline, settings, open_session)) as table:
                    table.table(session).createOrReplaceTempView(f"`{pipeline.id}`")
        for row in query_rows(session, query, limit):
            echo(json.dumps(row, default=str))


@app.command()
def submit(
    target: Target,
    names: Names = None,
    master: Master = None,
    conf: Conf = None,
    follows: Annotated[bool, typer.Option("--follow", help="the job runs until it is stopped")] = False,
    runs: Annotated[
        bool, typer.Option("--run", help="also run the line, with the jars that are cached already")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print the spark-submit line that runs pipelines, with the Maven packages that they need.

    With --run, the exit status is that of spark-submit. Jars that `kstreams jars` has cached are not fetched again.
    """
    from kstreams_py.embedded.jars import cached, spark_artifacts  # noqa: PLC0415
    from kstreams_py.spark.pipelines.targets import artifacts_of, cached_jars  # noqa: PLC0415
    from kstreams_py.spark.sessions import coordinates, exec_spark_submit  # noqa: PLC0415

    _, chosen, _ = _chosen(target, names, bootstrap_servers, config)
    command = find_spec("kstreams_command")
    assert command is not None
    assert command.origin is not None
    jars = [*cached(spark_artifacts()), *cached_jars(chosen)] if runs else []
    words = ["--jars", ",".join(map(str, jars))] if jars else ["--packages", coordinates(artifacts_of(chosen))]
    words += ["--master", master] if master else []
    words += [word for name, value in _settings_of(conf).items() for word in ("--conf", f"{name}={value}")]
    words += [command.origin, "pipeline", "run", target, *(names or ()), "--follow" if follows else "--once"]
    words += ["--bootstrap-servers", bootstrap_servers] if bootstrap_servers else []
    words += ["--config", str(config)] if config else []
    echo(shlex.join(["spark-submit", *words]))
    if runs:
        exec_spark_submit(words)


def _chosen(
    target: str, names: Sequence[str] | None, bootstrap_servers: str | None, config: Path | None
) -> tuple[Graph, tuple[Pipeline, ...], Settings]:
    from kstreams_py.spark.pipelines.runner import choose_pipelines  # noqa: PLC0415

    graph = load(target)
    return graph, choose_pipelines(graph, names or ()), Settings.load(config, bootstrap_servers=bootstrap_servers)


@contextmanager
def _opening(
    graph: Graph, master: str | None = None, conf: Sequence[str] | None = None, *, verbose: bool
) -> Iterator[Callable[[], Any]]:
    """Yields a function that opens the session for the graph's pipelines when first called; ends it on exit."""
    from kstreams_py import spark  # noqa: PLC0415
    from kstreams_py.spark.pipelines.targets import conf_of  # noqa: PLC0415

    of_spark = _settings_of(conf)
    opened: list[Any] = []

    def open_session() -> Any:
        if not opened:
            logger.info("starting Spark: this takes a few seconds")
            chosen: dict[str, Any] = {} if master is None else {"spark.master": master}
            chosen |= conf_of(graph.pipelines) | of_spark
            opened.append(spark.session(f"kstreams pipeline {graph.name}", quiet=not verbose, **chosen))
        return opened[0]

    try:
        yield open_session
    finally:
        for session in opened:
            session.stop()


def _settings_of(conf: Sequence[str] | None) -> dict[str, str]:
    """Returns the settings of Spark that --conf names. Raises SettingsError."""
    found = dict[str, str]()
    for each in conf or ():
        name, equals, value = each.partition("=")
        if not (name.startswith("spark.") and equals):
            raise SettingsError(f"--conf {each!r} is not a setting of Spark: write it as spark.name=value")
        found[name] = value
    return found


def _write_page(path: Path, graph: Graph, histories: Sequence[tuple[Pipeline, Published | None]]) -> None:
    try:
        from kstreams_py.spark.pipelines.history import history_page  # noqa: PLC0415
    except ImportError as error:
        raise MissingSoftware(f"--html needs {error.name}: run pip install 'kstreams_py[report]'") from None
    try:
        path.write_text(history_page(graph.name, histories, time.time()), encoding="utf-8")
    except OSError as error:
        raise UserMistake(f"{path}: the page cannot be written: {error.strerror}: name another file") from None
    echo(f"runs: {path}")


def _parsed(cut: str) -> Any:
    """Returns the decoded cut; the text itself if it is not JSON, because another program may have written it."""
    try:
        return parse_json(cut)
    except ValueError:
        return cut


def _fields(pipeline: Pipeline, run: PipelineRun | None) -> dict[str, Any]:
    if run is None:
        return {"pipeline": pipeline.id, "run": None}
    return {
        "pipeline": pipeline.id,
        "run": run.number,
        "offsets": run.offsets,
        "records": run.records,
        "rows": run.rows,
        "ended": run.ended,
        "seconds": run.seconds,
        "lag": run.lag,
        "malformed": run.malformed,
    }


_WIDTHS = {
    "run": 6, "ended": 19, "offsets": 12, "records": 12, "rows": 12, "seconds": 8, "lag, s": 10, "malformed": 9,
}  # fmt: skip
"""The columns of `status`, with their widths."""


def _cells(run: PipelineRun) -> Sequence[str]:
    ended = datetime.fromtimestamp(run.ended, UTC).strftime("%Y-%m-%d %H:%M:%S")
    records = "-" if run.records is None else f"{run.records:,}"
    lag = "-" if run.lag is None else f"{run.lag:,.1f}"
    rows, malformed = f"{run.rows:,}", f"{run.malformed:,}"
    return f"{run.number}", ended, f"{run.offsets:,}", records, rows, f"{run.seconds:.1f}", lag, malformed


def _text(pipeline: Pipeline, run: PipelineRun | None) -> str:
    if run is None:
        return f"{pipeline.id}: nothing new"
    read = count_of(run.offsets, "offset") if run.records is None else count_of(run.records, "record")
    return f"{pipeline.id}: run {run.number}: {count_of(run.rows, 'row')} from {read} in {run.seconds:.1f} s"
