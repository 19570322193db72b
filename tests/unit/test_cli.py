"""The command line, without a broker: help, version, completion, options that exclude one another, a Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kstreams_py import __version__
from kstreams_py.cli.main import app
from tests.waiting import WAIT, accept_interrupts, wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = Path(sys.executable).with_name("kstreams")

GRAPH = """
import kstreams_py as ks

graph = ks.Graph("one")
graph.sink(graph.topic("a"), id="p")(print)
"""


def environment(**changed: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("KSTREAMS_")}
    return {**ours, "COLUMNS": "200", **changed}


def kstreams(*arguments: object, **changed: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the console script."""
    done = subprocess.run(
        [SCRIPT, *map(str, arguments)],
        env=environment(**changed),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(GRAPH)
    return file


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that are shown, with their words."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from commands(each, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def squeeze(text: str) -> str:
    """The text without the frames and line breaks of a terminal."""
    return "".join(re.sub(r"[\u2500-\u257f]", "", text).split())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_shows_the_text_of_each_option_whole(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # in a narrow terminal, the types of options break into their texts
    with pytest.raises(SystemExit):
        app([*path, "--help"])
    shown = squeeze(capsys.readouterr().out)
    texts = [each.help for each in ALL[path].params if getattr(each, "help", None)]
    assert [text for text in texts if squeeze(text) not in shown] == []


def test_help_shows_what_is_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["run", "--help"])
    assert "librdkafka'sunder[kafka]" in squeeze(capsys.readouterr().out)


def test_version_is_printed() -> None:
    assert kstreams("--version") == (0, f"kstreams_py {__version__}\n", "")


def test_completion_completes_commands_and_options() -> None:
    status, out, _ = kstreams(_KSTREAMS_COMPLETE="complete_bash", COMP_WORDS="kstreams topics cr", COMP_CWORD="2")
    assert (status, out.split()) == (0, ["create"])
    status, out, _ = kstreams(_KSTREAMS_COMPLETE="complete_bash", COMP_WORDS="kstreams run --wor", COMP_CWORD="2")
    assert (status, out.split()) == (0, ["--workers"])


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
    graph: Path, arguments: tuple[object, ...], message: str
) -> None:
    assert kstreams("run", graph, *arguments) == (2, "", f"error: SettingsError: {message}\n")


@pytest.mark.parametrize("slots", ["0-1000", "0-99999999999999999999", "0-999,1000"])
def test_more_slots_than_a_machine_can_run_are_refused_before_they_are_counted(graph: Path, slots: str) -> None:
    message = f"error: SettingsError: --slots '{slots}': a machine runs 1,000 slots at most: name fewer\n"
    assert kstreams("run", graph, "--slots", slots) == (2, "", message)
    status, _, err = kstreams("run", graph, "--workers", 1_001)
    assert (status, "Invalidvaluefor'--workers':Inputshouldbelessthanorequalto1000" in squeeze(err)) == (2, True)


# The streams.


def shell(command: str, **changed: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        command, shell=True, env=environment(**changed), capture_output=True, timeout=WAIT, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["config show", "graph {graph} -f svg", "graph {graph}", "--version"])
def test_output_that_cannot_be_written_is_one_message(graph: Path, command: str) -> None:
    message = b"error: Unavailable: standard output cannot be written: [Errno 28] No space left on device: "
    for unbuffered in ("", "1"):
        status, _, err = shell(f"{SCRIPT} {command.format(graph=graph)} > /dev/full", PYTHONUNBUFFERED=unbuffered)
        assert (status, err) == (3, message + b"what was printed is not complete\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_else(graph: Path, closed: str) -> None:
    status, out, err = shell(f"{SCRIPT} graph {graph} {closed}")
    assert (status, bool(out), err) == (0, ">&-" not in closed.replace("2>&-", ""), b"")
    status, out, err = shell(f"{SCRIPT} graph absent.py {closed}")
    assert (status, out, bool(err)) == (2, b"", "2>&-" not in closed)


def test_characters_that_the_encoding_of_the_output_lacks_are_escaped_as_in_json(graph: Path) -> None:
    graph.write_text(GRAPH.replace('ks.Graph("one")', 'ks.Graph("one")\nprint("gr\u00fcn \U0001f600")'))
    status, out, err = shell(f"{SCRIPT} graph {graph}", PYTHONIOENCODING="ascii")
    assert (status, out.splitlines()[0], err) == (0, b"gr\\u00fcn \\ud83d\\ude00", b"")


@pytest.mark.parametrize(("port", "limit"), [(99_999, "lessthanorequalto65535"), (0, "greaterthanorequalto1")])
def test_port_that_does_not_exist_is_refused(port: int, limit: str) -> None:
    status, out, err = kstreams("broker", "start", f"--port={port}")
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert f"Invalidvaluefor'--port':Inputshouldbe{limit}" in squeeze(err)


@pytest.mark.parametrize(
    ("arguments", "close"),
    [
        (("run", "--wokers", "2"), "Nosuchoption:--wokers(Possibleoptions:--workers)"),
        (("topics", "crate"), "Nosuchcommand'crate'.Didyoumean'create'?"),
    ],
)
def test_misspelled_option_or_command_is_refused_with_a_suggestion(arguments: tuple[str, ...], close: str) -> None:
    status, out, err = kstreams(*arguments)
    assert (status, out) == (2, "")
    assert close in squeeze(err)


@pytest.mark.parametrize("arguments", [("broker", "status"), ("config", "show"), ("run", "shop.py")], ids=" ".join)
def test_misspelled_variable_is_refused_by_each_command(arguments: tuple[str, ...]) -> None:
    assert kstreams(*arguments, KSTREAMS_COMIT_RECORDS="5") == (
        2,
        "",
        (
            "error: SettingsError: KSTREAMS_COMIT_RECORDS is no setting of kstreams_py: did you mean "
            "KSTREAMS_COMMIT_RECORDS? (correct it, or unset it)\n"
        ),
    )


def test_misspelled_topic_and_option_of_a_processor_are_refused_with_a_suggestion(graph: Path) -> None:
    for line, message in {
        "graph.sink('orderz', id='q')(print)": "processor 'q': there is no topic 'orderz': did you mean orders?",
        "graph.sink(orders, id='q', guarante='x')(print)": (
            "processor 'q' has no option 'guarante': did you mean guarantee?"
        ),
        "graph.sink(orders, id='q', guarantee='exactly_one')(print)": (
            "processor 'q': guarantee 'exactly_one' is not known: did you mean exactly_once?"
        ),
    }.items():
        graph.write_text(f"{GRAPH}orders = graph.topic('orders')\n{line}\n")
        assert kstreams("graph", graph) == (2, "", f"error: GraphError: {graph}, line 7: {message}\n")


def test_settings_are_shown_with_their_values_and_origins(tmp_path: Path) -> None:
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


def interrupt(command: list[object], there: Path, **changed: str) -> tuple[int, str]:
    """Sends SIGINT once the file exists; returns the exit status and all output of the command."""
    accept_interrupts()
    with subprocess.Popen(
        list(map(str, command)),
        env=environment(**changed),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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


@pytest.mark.parametrize("mode", [("--workers", 2), ()], ids=str)
def test_ctrl_c_while_the_graph_is_imported_is_one_message(tmp_path: Path, mode: tuple[object, ...]) -> None:
    there, file = tmp_path / "there", tmp_path / "slow.py"
    file.write_text(WAITS.format(there=str(there)))
    assert interrupt([SCRIPT, "run", file, *mode], there) == (130, "interrupted\n")
