"""The command line, without a broker: help, version, completion, options that exclude one another, a Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer.main

from kstreams_py import __version__
from kstreams_py.cli import main as command
from kstreams_py.kafka import contact
from kstreams_py.running.terminal import logs
from tests.waiting import WAIT, accept_interrupts, wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = Path(sys.executable).with_name("kstreams")

GRAPH = """
import kstreams_py as ks

graph = ks.Graph("one")
graph.sink(graph.topic("a"), id="p", errors="e")(print)
"""


def environment(**changed: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("KSTREAMS_")}
    return {**ours, "COLUMNS": "200", **changed}


Kstreams = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kstreams(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kstreams:
    """Runs the command in this process; returns its exit status, its output and its errors."""

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    def run(*arguments: object, **changed: str) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "environ", environment(**changed))
            patch.setattr(sys, "argv", ["kstreams", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                command.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    monkeypatch.setattr(command, "_exit", leave)
    monkeypatch.setattr(logs, "configure", lambda: None)
    return run


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(GRAPH)
    return file


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that are shown, with their words."""
    yield path, group
    for name, each in getattr(group, "commands", {}).items():
        if not each.hidden:
            yield from commands(each, (*path, name))


KSTREAMS = typer.main.get_command(command.app)
ALL = dict(commands(KSTREAMS))


def squeeze(text: str) -> str:
    """The text without the frames and line breaks of a terminal."""
    return "".join(re.sub(r"[\u2500-\u257f]", "", text).split())


HELP = """\

 Usage: kstreams [OPTIONS] COMMAND [ARGS]...

 Exactly-once stream processing on Kafka in plain Python functions.

╭─ Options ────────────────────────────────────────────────────────────────────╮
│ --version                     print the version                              │
│ --install-completion          Install completion for the current shell.      │
│ --show-completion             Show completion for the current shell, to copy │
│                               it or customize the installation.              │
│ --help                        Show this message and exit.                    │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Start ──────────────────────────────────────────────────────────────────────╮
│ new            Write a new project to the directory NAME: a graph with a     │
│                fork, dead letters and a sink, and its tests.                 │
│ dev            Run a graph while you write it: starts a broker, topics and   │
│                workers, and prints outputs, until Ctrl-C.                    │
│ run            Run a graph until Ctrl-C or SIGTERM. A second Ctrl-C ends it  │
│                immediately.                                                  │
│ send           Send records to a topic: one from --value and --key, or lines │
│                of JSON from standard input.                                  │
│ topics         The topics of a graph: create, check, describe, delete.       │
│ config         The settings.                                                 │
│ broker         A real Kafka on this machine's loopback, for first steps and  │
│                tests.                                                        │
│ demo           Demonstrations on real data.                                  │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Inspect ────────────────────────────────────────────────────────────────────╮
│ graph          Describe a graph as text, Mermaid or SVG.                     │
│ doctor         Find what holds readers back or endangers a promise. Exit     │
│                status 0 for notes at most, 1 for warnings or errors.         │
│ tail           Print records of a topic, one JSON object per line; without   │
│                --from, the newest ones.                                      │
│ state          The state that processors keep.                               │
│ slots          The slots of a graph: list the workers that hold them,        │
│                release those of workers that have ended.                     │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Repair ─────────────────────────────────────────────────────────────────────╮
│ recover        What a graph has processed: show its tasks, audit its         │
│                outputs, and move, export, restore and delete its positions.  │
│ dead-letters   Dead letters of a graph: list, show, replay and discard.      │
│ sources        The sources of a graph: list their inputs that are under way  │
│                or refused, let refused ones be read again.                   │
│ transactions   Transactions: list and describe them, find hanging ones, and  │
│                end them.                                                     │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Deploy ─────────────────────────────────────────────────────────────────────╮
│ k8s            Print a StatefulSet with a pod for each slot or peer, a       │
│                headless Service and a PodDisruptionBudget, as YAML.          │
│ systemd        Print a systemd unit that runs the graph's slots on this      │
│                machine, with this Python.                                    │
│ acls           Print the ACLs that a graph needs as commands for kafka-acls, │
│                by role and cluster. Connects to no broker.                   │
│ jars           Fetch the broker's jars, and Spark's if PySpark is installed, │
│                and archive their classes for a faster start.                 │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Spark ──────────────────────────────────────────────────────────────────────╮
│ cut            Make a cut of a graph's topics: each transaction is inside    │
│                the cut on all topics, or on none.                            │
│ spark-options  Print the options with which any Spark job reads a topic's    │
│                committed records.                                            │
│ pipeline       The pipelines of a graph: tables that Spark computes from its │
│                topics.                                                       │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Ordering ───────────────────────────────────────────────────────────────────╮
│ order          Send queued events to a topic, with each object's events in a │
│                fixed order, until Ctrl-C or SIGTERM.                         │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Peers ──────────────────────────────────────────────────────────────────────╮
│ peer           Run peers of a cluster, which share its jobs, until Ctrl-C or │
│                SIGTERM.                                                      │
│ job            Jobs of a cluster of peers: submit, list, show, kill, wait    │
│                for.                                                          │
│ cluster        A cluster of peers: its state, and its log in words.          │
╰──────────────────────────────────────────────────────────────────────────────╯

"""


def helps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], str]:
    """What --help of each command prints in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for path in ALL:
        with pytest.raises(SystemExit):
            KSTREAMS([*path, "--help"], "kstreams")
        shown[path] = capsys.readouterr().out
    return shown


def column_of(option: Any, shown: str) -> str:
    """The text beside an option, and of all below it, without the frames and line breaks of a terminal."""
    lines = shown.splitlines()
    name = option.opts[0] if option.opts[0].startswith("-") else option.metavar
    first = next(i for i, line in enumerate(lines) if line.startswith("│") and name in re.split(r"[\s,│]+", line)[1:3])
    start = lines[first].rindex(f"  {option.help.split()[0]}")
    return squeeze("".join(line[start:] for line in lines[first:]))


def test_help_of_all_commands_has_them_in_panels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = helps(capsys, monkeypatch)[()]
    assert "".join(f"{line.rstrip()}\n" for line in shown.splitlines()) == HELP


def test_help_shows_each_text_and_each_value_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = helps(capsys, monkeypatch)
    assert "librdkafka'sunder[kafka]" in squeeze(shown[("run",)].replace("\n", ""))
    for path, each in ALL.items():
        cut = [line for line in shown[path].splitlines() if "\N{HORIZONTAL ELLIPSIS}" in line or "<" in line]
        assert [line for line in cut if "<=x<=" not in line] == [], path
        for option in each.params:
            if option.hidden:
                continue
            assert column_of(option, shown[path]).startswith(squeeze(option.help)), (path, option.opts)
            if option.metavar:
                assert option.metavar in re.split(r"[\s│{}]+", shown[path]), (path, option.opts)


def test_version_is_printed(kstreams: Kstreams) -> None:
    assert kstreams("--version") == (0, f"kstreams_py {__version__}\n", "")


def test_completion_completes_commands_and_options(kstreams: Kstreams) -> None:
    for words, completed in {"topics cr": "create", "run --wor": "--workers"}.items():
        asked = {"_KSTREAMS_COMPLETE": "complete_bash", "COMP_WORDS": f"kstreams {words}", "COMP_CWORD": "2"}
        status, out, err = kstreams(**asked)
        assert (status, out.split(), err) == (0, [completed], "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--slot", 0, "--workers", 2), "--slot and --workers exclude one another: choose one"),
        (("--slot", 0, "--slots", "4-7"), "--slot and --slots exclude one another: choose one"),
        (("--slots", "4-7", "--workers", 1), "--slots and --workers exclude one another: choose one"),
        (("--partitions", 8), "--partitions is for topics that are created: add --create-topics"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    kstreams: Kstreams, graph: Path, arguments: tuple[object, ...], message: str
) -> None:
    assert kstreams("run", graph, *arguments) == (2, "", f"error: SettingsError: {message}\n")


def test_more_slots_than_a_machine_can_run_are_refused_before_they_are_counted(kstreams: Kstreams, graph: Path) -> None:
    for slots in ("0-1000", "0-99999999999999999999", "0-999,1000"):
        message = f"error: SettingsError: --slots '{slots}': a machine runs 1,000 slots at most: name fewer\n"
        assert kstreams("run", graph, "--slots", slots) == (2, "", message)
    status, _, err = kstreams("run", graph, "--workers", 1_001)
    assert (status, "Invalidvaluefor'--workers':Inputshouldbelessthanorequalto1000" in squeeze(err)) == (2, True)


SOURCES = """
import kstreams_py as ks
from kstreams_py import sources

graph = ks.Graph("two")
for name in ("rows", "more"):
    source = graph.source(name, sources.SQLite(f"absent/{name}.db", table="t", key="id"))
    graph.sink(source, id=f"store_{name}")(lambda row: None)
"""


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (GRAPH, ("--all",), "graph 'one' has no source: its topics have dead letters instead"),
        (SOURCES, ("--source", "rows"), "name the inputs: one --key for each, or --all of them"),
        (SOURCES, ("--all", "--key", 1), "name the inputs: one --key for each, or --all of them"),
        (SOURCES, ("--all",), "graph 'two' has several sources: add --source rows or more"),
        (SOURCES, ("--key", 1, "--source", "row"), "graph 'two' has no source 'row': did you mean rows?"),
        (SOURCES, ("--all", "--source", "more"), "there is no file 'absent/more.db': correct the path of the source"),
    ],
)
def test_retry_of_refused_inputs_is_refused_with_the_remedy(
    kstreams: Kstreams, graph: Path, text: str, options: tuple[object, ...], message: str
) -> None:
    graph.write_text(text)
    assert kstreams("sources", "retry", graph, *options) == (2, "", f"error: SettingsError: {message}\n")
    status, out, _ = kstreams("sources", "list", graph)
    rows = "rows  absent/rows.db: table t: there is no file 'absent/rows.db': correct the path of the source"
    assert (status, out.splitlines()[0]) == (0, rows if text is SOURCES else "no sources")


# The streams.


def shell(line: str, **changed: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run(line, shell=True, env=environment(**changed), capture_output=True, timeout=WAIT, check=False)
    return done.returncode, done.stdout, done.stderr


# An output without a buffer fails at the print, another as it is flushed at the end; what is printed does not matter.
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        ("config show", ""),
        ("graph {graph} -f svg", "1"),
        pytest.param("graph {graph}", "", marks=pytest.mark.long),
        pytest.param("--version", "1", marks=pytest.mark.long),
        pytest.param("config show", "1", marks=pytest.mark.long),
        pytest.param("graph {graph} -f svg", "", marks=pytest.mark.long),
        pytest.param("graph {graph}", "1", marks=pytest.mark.long),
        pytest.param("--version", "", marks=pytest.mark.long),
    ],
)
def test_output_that_cannot_be_written_is_one_message(graph: Path, words: str, unbuffered: str) -> None:
    message = b"error: Unavailable: standard output cannot be written: [Errno 28] No space left on device: "
    status, _, err = shell(f"{SCRIPT} {words.format(graph=graph)} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (status, err) == (3, message + b"the printed output is incomplete\n")


# Each stream is repaired by itself, so that all that are closed at once stand for each of them.
@pytest.mark.parametrize(
    ("closed", "is_there"),
    [
        ("<&- >&- 2>&-", True),
        (">&-", False),
        pytest.param("<&- >&- 2>&-", False, marks=pytest.mark.long),
        pytest.param(">&-", True, marks=pytest.mark.long),
        *(
            pytest.param(each, there, marks=pytest.mark.long)
            for each in ("<&-", "<&- >&-", "2>&-")
            for there in (True, False)
        ),
    ],
)
def test_closed_streams_change_nothing_else(graph: Path, closed: str, is_there: bool) -> None:
    status, out, err = shell(f"{SCRIPT} graph {graph if is_there else 'absent.py'} {closed}")
    if is_there:
        assert (status, bool(out), err) == (0, ">&-" not in closed.replace("2>&-", ""), b"")
    else:
        assert (status, out, bool(err)) == (2, b"", "2>&-" not in closed)


def test_characters_that_the_encoding_of_the_output_lacks_are_escaped_as_in_json(graph: Path) -> None:
    graph.write_text(GRAPH.replace('ks.Graph("one")', 'ks.Graph("one")\nprint("gr\u00fcn \U0001f600")'))
    status, out, err = shell(f"{SCRIPT} graph {graph}", PYTHONIOENCODING="ascii")
    assert (status, out.splitlines()[0], err) == (0, b"gr\\u00fcn \\ud83d\\ude00", b"")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("broker", "start", "--port=99999"), "Invalidvaluefor'--port':Inputshouldbelessthanorequalto65535"),
        (("broker", "start", "--port=0"), "Invalidvaluefor'--port':Inputshouldbegreaterthanorequalto1"),
        (("run", "--wokers", "2"), "Nosuchoption:--wokers(Possibleoptions:--workers)"),
        (("topics", "crate"), "Nosuchcommand'crate'.Didyoumean'create'?"),
    ],
)
def test_port_option_or_command_that_does_not_exist_is_refused(
    kstreams: Kstreams, arguments: tuple[str, ...], named: str
) -> None:
    status, out, err = kstreams(*arguments)
    assert (status, out, "Traceback" in err) == (2, "", False)
    assert named in squeeze(err)


@pytest.mark.parametrize("arguments", [("broker", "status"), ("config", "show"), ("run", "shop.py")], ids=" ".join)
def test_misspelled_variable_is_refused_by_each_command(kstreams: Kstreams, arguments: tuple[str, ...]) -> None:
    message = (
        "error: SettingsError: KSTREAMS_COMIT_RECORDS is not a setting of kstreams_py: did you mean "
        "KSTREAMS_COMMIT_RECORDS? (correct it, or unset it)\n"
    )
    assert kstreams(*arguments, KSTREAMS_COMIT_RECORDS="5") == (2, "", message)


@pytest.mark.parametrize(
    ("topic", "options", "message"),
    [
        ("orderz", "", "processor 'q': there is no topic 'orderz': did you mean orders?"),
        ("orders", ", guarante='x'", "processor 'q' has no option 'guarante': did you mean guarantee?"),
        (
            "orders",
            ", guarantee='exactly_one'",
            "processor 'q': guarantee 'exactly_one' is not known: did you mean exactly_once?",
        ),
    ],
)
def test_misspelled_topic_or_option_of_a_processor_is_refused_with_a_suggestion(
    kstreams: Kstreams, graph: Path, topic: str, options: str, message: str
) -> None:
    graph.write_text(f"{GRAPH}orders = graph.topic('orders')\ngraph.sink('{topic}', id='q'{options})(print)\n")
    assert kstreams("graph", graph) == (2, "", f"error: GraphError: {graph}, line 7: {message}\n")


def test_settings_are_shown_with_their_values_and_origins(kstreams: Kstreams, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("commit_records = 5\n[kafka]\nsasl.password = 'hunter2'\n")
    status, out, err = kstreams("config", "show", "--config", file, "-b", "a:1", KSTREAMS_DRAIN_TIMEOUT_MS="7")
    assert (status, err) == (0, "")
    assert "hunter2" not in out
    lines = [re.split(" {2,}", line) for line in out.splitlines()]
    assert [line for line in lines if line[2] != "default"] == [
        ["bootstrap_servers", "a:1", "argument"],
        ["commit_records", "5", f"{file}, line 1"],
        ["drain_timeout_ms", "7", "KSTREAMS_DRAIN_TIMEOUT_MS"],
        ["kafka.sasl.password", "***", f"{file}, line 3, table [kafka]"],
    ]


# A Ctrl-C before anything runs.

WAITS = """
import time
from pathlib import Path

Path({there!r}).touch()
while True:
    time.sleep(0.1)  # a signal just before a long sleep would not end it
"""


def interrupt(words: list[object], there: Path, **changed: str) -> tuple[int, str]:
    """Sends SIGINT once the file exists; returns the exit status and all output of the command."""
    accept_interrupts()
    with subprocess.Popen(
        list(map(str, words)), env=environment(**changed), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            wait_until(there.exists, "the command waits")
            running.send_signal(signal.SIGINT)
            out, _ = running.communicate(timeout=WAIT)
        finally:
            running.kill()
    return running.returncode, out


def test_ctrl_c_while_the_package_is_imported_is_one_message(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "kstreams_py.py").write_text(WAITS.format(there=str(there)))
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import kstreams_command as c; c.main()"
    assert interrupt([sys.executable, "-c", script], there) == (130, "interrupted\n")


# the processes come after the import
@pytest.mark.parametrize("mode", [(), pytest.param(("--workers", 2), marks=pytest.mark.long)], ids=str)
def test_ctrl_c_while_the_graph_is_imported_is_one_message(tmp_path: Path, mode: tuple[object, ...]) -> None:
    there, file = tmp_path / "there", tmp_path / "slow.py"
    file.write_text(WAITS.format(there=str(there)))
    assert interrupt([SCRIPT, "run", file, *mode], there) == (130, "interrupted\n")


@pytest.mark.parametrize(
    "words",
    [
        "run shop.py --slot 0",
        "run shop.py --workers 2",
        "doctor",
        "doctor shop.py",
        "tail a",
        "send a --value 1",
        "topics create shop.py",
        "topics check shop.py",
        "slots list shop.py",
        "recover status shop.py",
        "recover audit shop.py",
        "dead-letters list shop.py",
        "transactions find-hanging",
    ],
)
def test_each_command_without_a_broker_ends_with_the_same_error(
    kstreams: Kstreams, graph: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(graph.parent)
    monkeypatch.setattr(contact, "_answered", set())
    nowhere = {"KSTREAMS_BOOTSTRAP_SERVERS": "127.0.0.1:1", "KSTREAMS_REQUEST_TIMEOUT_MS": "1000"}
    message = (
        "error: BrokerUnavailable: no Kafka broker answers at 127.0.0.1:1 (Connection refused): start one (`kstreams "
        "broker start`), or correct --bootstrap-servers / KSTREAMS_BOOTSTRAP_SERVERS\n"
    )
    assert kstreams(*words.split(), **nowhere) == (3, "", message)
