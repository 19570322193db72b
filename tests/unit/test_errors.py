"""errors.py: the tree in its docstring is that of its classes."""

from __future__ import annotations

import re
from pathlib import Path

import kstreams_py
from kstreams_py import errors
from kstreams_py.errors import KStreamsError

LINE = re.compile(
    r"^(?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+)(?:\s{2,}(?P<text>.*?)(?:\s+\(exit status (?P<status>\d)\))?)?$"
)


def read_tree() -> dict[str, tuple[str | None, int | None]]:
    """Each name in the docstring, with its parent's name and its own or inherited exit status (default 1)."""
    found: dict[str, tuple[str | None, int | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match is None or not line.startswith("    "):
            continue
        depth = len(match["branch"])
        above = [(at, name) for at, name in above if at < depth]
        parent = above[-1][1] if above else None
        inherited = found[parent][1] if parent else 1
        found[match["name"]] = (parent, int(match["status"]) if match["status"] else inherited)
        above.append((depth, match["name"]))
    return found


def test_every_exception_is_in_the_tree_under_its_parent_with_its_exit_status() -> None:
    classes = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, BaseException)}
    assert read_tree() == {
        name: (
            parent.__name__ if (parent := each.__base__) in classes.values() else None,  # type: ignore[union-attr]
            getattr(each, "exit_status", 1),
        )
        for name, each in classes.items()
    }


def test_exit_statuses_differ_where_a_supervisor_acts_differently() -> None:
    statuses = {name: getattr(errors, name).exit_status for name in read_tree() if name not in ("Stop", "EncodeError")}
    assert {s: [n for n in statuses if statuses[n] == s] for s in sorted(set(statuses.values()))} == {
        1: ["KStreamsError", "ClientError", "Refused", "Abortable", "OutcomeUnknown", "Fenced", "Fatal",
            "FunctionExited", "DrainTimeout", "WorkerStuck", "StaleWriter", "PipelineFailed", "HistoryError",
            "WorkersFailed", "InputEndsWorkers", "DecodeError", "EventFault"],
        2: ["UserMistake", "SettingsError", "GraphError", "TopicError", "SchemaError", "RecordRefused",
            "RecordTooLarge", "RowRefused", "MissingSoftware"],
        3: ["Unavailable", "BrokerUnavailable", "NotAuthorized", "SinkUnavailable", "SourceUnavailable",
            "StoreUnavailable", "Retriable",
            "SinkAway", "NotRestored"],
        4: ["Replaced"],
        5: ["InputLost", "RecoveryUndecidable"],
    }  # fmt: skip


def test_every_exception_that_a_program_may_meet_is_exported() -> None:
    """The subclasses of ClientError are internal: a program meets them as a ClientError."""
    inner = {name for name in read_tree() if errors.ClientError in getattr(errors, name).__mro__[1:]}
    assert {
        name for name in read_tree() if getattr(kstreams_py, name, None) is getattr(errors, name)
    } == read_tree().keys() - inner


def test_stop_is_no_kstreams_error_and_every_exception_has_a_docstring() -> None:
    assert not issubclass(errors.Stop, KStreamsError)
    assert all(getattr(errors, name).__doc__ for name in read_tree())


def test_workers_failed_ends_with_the_status_of_the_worker() -> None:
    failed = errors.WorkersFailed("slot 3 ended with status 4", 4)
    assert (str(failed), failed.exit_status) == ("slot 3 ended with status 4", 4)


def test_refused_carries_the_mistake_and_the_refused_outputs() -> None:
    mistake = errors.RecordTooLarge("a record is larger than topic 'x' takes")
    written = ("x", b"v", None, 0, None, None, 0, None)
    refused = errors.Refused(mistake, [written])
    assert (str(refused), refused.mistake, refused.outputs) == (str(mistake), mistake, [written])
    assert list(errors.Refused(mistake).outputs) == []


def test_exceptions_are_defined_only_in_errors() -> None:
    package = Path(kstreams_py.__file__).parent
    known = set(read_tree())
    elsewhere = [
        f"{path.relative_to(package).as_posix()}: {name}"
        for path in sorted(package.rglob("*.py"))
        if path.name != "errors.py"
        for name, bases in re.findall(r"^ *class (\w+)\(([^)]*)\)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if {*re.findall(r"\w+", bases)} & (known | {"Exception", "RuntimeError"})
    ]
    assert elsewhere == []
