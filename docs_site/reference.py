"""The pages that are made from the code: settings, metrics, commands, exit statuses, the public names.

Each function returns one page as Markdown; `PAGES` has them by their paths in the site.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from typer import Context
from typer.main import get_command

import kstreams_py
from kstreams_py.cli.main import app
from kstreams_py.errors import EXIT_STATUSES, KStreamsError
from kstreams_py.graph.declarations import Options, OptionsOfAll, OrderedOptions
from kstreams_py.graph.topology import Graph
from kstreams_py.metrics import RENEWALS, WorkerState
from kstreams_py.running.http.series import SERIES
from kstreams_py.settings import OTHER_VARIABLES, OWNED, Settings

PUBLIC: Final = (
    "kstreams_py",
    "kstreams_py.testing",
    "kstreams_py.embedded",
    "kstreams_py.sinks",
    "kstreams_py.sources",
    "kstreams_py.spark",
)
"""The modules that users import."""


WIDE: Final = "---\nhide: [toc]\n---\n\n"
"""The head of a page whose tables need the place of the table of contents."""

NEW_LINE: Final = "\n"  # Python 3.11 takes no backslash in an f-string


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def code(text: str) -> str:
    """Text in the type of code; nothing for no text."""
    return f"`{text}`" if text else ""


# Settings.


def meanings_of_settings() -> dict[str, str]:
    """The meaning of each setting: the list in the docstring of Settings."""
    found = {}
    for names, meaning in re.findall(r"^- (`.+?`): (.+(?:\n  .+)*)", inspect.getdoc(Settings) or "", re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            found[name] = " ".join(meaning.split())
    return found


def type_of_setting(name: str, field: FieldInfo) -> str:
    """What may be written for a setting, in words."""
    annotation, limits = field.annotation, list(field.metadata)
    for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        if part is not NoneType:
            annotation = part
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        limits += [each for one in more for each in (one.metadata if isinstance(one, FieldInfo) else (one,))]
    if get_origin(annotation) is Literal:
        return " or ".join(code(each) for each in get_args(annotation))
    words = {int: "integer", bool: "`true` or `false`", Path: "path", str: "text"}
    word = words.get(annotation, "table" if name in ("kafka", "schema_registry") else "URL")  # type: ignore[arg-type]
    if name.endswith("_ms"):
        word = "milliseconds"
    bounds = [f"{sign} {limit}" for each in limits for sign, limit in _bounds(each)]
    return ", ".join([word, *bounds])


def _bounds(limit: object) -> Iterator[tuple[str, str]]:
    for attribute, sign in (("gt", ">"), ("ge", "≥")):
        if (value := getattr(limit, attribute, None)) is not None:
            yield sign, f"{value:,}"


def variable_of_setting(name: str) -> str:
    """The variable of a setting; each client setting has one of its own."""
    tables = {
        "kafka": "KSTREAMS_KAFKA__<NAME>",
        "schema_registry": "KSTREAMS_SCHEMA_REGISTRY__<NAME>",
        "clusters": "KSTREAMS_CLUSTERS__<CLUSTER>__<NAME>",
    }
    return tables.get(name, f"KSTREAMS_{name.upper()}")


def default_of_setting(value: object) -> str:
    """A default as it is written; paths from the home directory."""
    if value is None or (isinstance(value, Mapping) and not value):
        return "not set"
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(str(value).replace(str(Path.home()), "~"))


def settings() -> str:
    """Every setting, the variables that are not settings, and librdkafka's settings that cannot be set."""
    meanings = meanings_of_settings()
    rows = [
        (
            f"{code(name)}<br>{code(variable_of_setting(name))}",
            type_of_setting(name, field),
            default_of_setting(field.default),
            meanings[name],
        )
        for name, field in Settings.model_fields.items()
    ]
    others = [(code(name), what) for name, what in OTHER_VARIABLES.items() if what != "of the project's tests"]
    return f"""{WIDE}# Settings

A setting is an argument of `ks.Settings` (or an option of the command), else a variable of the environment, else a
line of the TOML file that `--config` names, else its default. `kstreams config show` prints each one, its value and
where that comes from; secrets are masked. A setting or a variable that does not exist is refused, with a suggestion.

{table(("setting and variable", "what is written", "default", "meaning"), rows)}
Rules between settings: `commit_interval_ms` < `transaction_timeout_ms` ≤ `session_timeout_ms`. `stuck_timeout_ms` is
at least 1,000 and `commit_interval_ms`.

## Client settings

Any setting of [librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md) passes through to
all clients: under `[kafka]` in the file, as `KSTREAMS_KAFKA__SOCKET_TIMEOUT_MS=2000` in the environment, or as
`ks.Settings(kafka={{"socket.timeout.ms": 2000}})`. [Signing in](../signing-in.md) has those for passwords, certificates
and tokens. These are refused, because the framework sets them itself:

{table(("librdkafka's setting", "why, or what to use"), [(code(name), why) for name, why in OWNED.items()])}
## Other clusters

Outputs can be [on another cluster](../delivery.md#exactly_once-to-another-cluster), which has `bootstrap_servers` and
client settings of its own: under `[clusters.west]` and `[clusters.west.kafka]` in the file, as
`KSTREAMS_CLUSTERS__WEST__BOOTSTRAP_SERVERS` and `KSTREAMS_CLUSTERS__WEST__KAFKA__SASL_PASSWORD` in the environment, or
as `ks.Settings(clusters={{"west": {{"bootstrap_servers": "west:9092"}}}})`. All other settings are the same for all
clusters.

## Variables that are not settings

{table(("variable", "what it is"), others)}"""


# Metrics.


def full_name(name: str, kind: str) -> str:
    """The name of a series at /metrics."""
    return f"kstreams_{name}{'_total' if kind == 'counter' else ''}"


def docstrings(of: type[Enum]) -> dict[str, str]:
    """The docstring below each member of an enum, by its value."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for member, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(member.targets[0], ast.Name)
            found[str(of[member.targets[0].id].value)] = str(text.value.value)
    return found


def metrics() -> str:
    """Every series of /metrics, the states of a worker, the reasons of renewals."""
    rows = [
        (code(full_name(each.name, each.kind)), each.kind, ", ".join(map(code, ("graph", *each.labels))), each.help)
        for each in SERIES
    ]
    return f"""{WIDE}# Metrics

`kstreams run --http 127.0.0.1:8080` (`KSTREAMS_HTTP`, `ks.Settings(http=...)`) serves, without authentication:

| path | answer |
|---|---|
| `/metrics` | the series below, in the text format of Prometheus; needs `pip install 'kstreams_py[metrics]'` |
| `/livez` | 200, or 503 with the workers whose loop is stuck, and where |
| `/readyz` | 200, or 503 with the workers that do not hold their place in the group |
| `/status` | all as JSON: the graph, slots, workers, partitions with their lag, restarts, dead letters |

A run with several slots has one address for all of them. Counters go on when a worker is replaced, and start at 0 with
the next `kstreams run`: use `rate` or `increase`.
What to do when a series looks wrong: the [runbook](../runbook.md).

{table(("series", "kind", "labels", "meaning"), rows)}
A histogram has the series `_bucket`, `_sum` and `_count`.

## States of a worker

The label `state` of `kstreams_worker_state`, and the `state` of each worker at `/status`:

{table(("state", "meaning"), [(code(state), meaning) for state, meaning in docstrings(WorkerState).items()])}
## Reasons for a new producer

The label `reason` of `kstreams_producer_renewals_total`:

{table(("reason", "meaning"), [(code(reason), meaning) for reason, meaning in RENEWALS.items()])}"""


# Commands.


def commands_of(command: Any, words: tuple[str, ...] = ("kstreams",)) -> Iterator[tuple[str, Any]]:
    """Each command that is shown in a help, with the words that call it; groups come as their commands."""
    if command.hidden:
        return
    if not hasattr(command, "commands"):
        yield " ".join(words), command
        return
    for name, each in command.commands.items():
        yield from commands_of(each, (*words, name))


def parameters_of(command: Any) -> list[Any]:
    """The parameters that are shown in the help of a command, in their order, without --help."""
    shown = command.get_params(Context(command))
    return [each for each in shown if not each.hidden and each.name != "help"]


def usage_of(parameter: Any) -> str:
    """A parameter as it is written: `--workers N`, TARGET, or `[NAME]...`."""
    if not parameter.opts[0].startswith("-"):
        name = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
        return name if parameter.nargs == 1 else f"{name}..."
    value = f" {parameter.metavar}" if parameter.metavar else ""
    return ", ".join([*parameter.opts, *parameter.secondary_opts]) + value


def default_of(parameter: Any) -> str:
    """The default of a parameter, as it is written."""
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or callable(value):
        return ""
    return code(str(value.value if isinstance(value, Enum) else value))


def commands() -> str:
    """Every command with its arguments and options."""
    parts = []
    for words, command in commands_of(get_command(app)):
        rows = [(code(usage_of(each)), each.help or "", default_of(each)) for each in parameters_of(command)]
        shown = table(("argument or option", "meaning", "default"), rows) if rows else "No options.\n"
        parts.append(f"## {words}\n\n{inspect.cleandoc(command.help or '')}\n\n{shown}")
    return f"""# Commands

`kstreams --help` prints the commands by what they are for, `kstreams GROUP COMMAND --help` a command.
`kstreams --version` prints the version, `kstreams --install-completion` installs completion for your shell. A mistake
is one message and [exit status 2](exit-statuses.md).

{NEW_LINE.join(parts)}"""


# Exit statuses.


def exit_statuses() -> str:
    """Every exit status, and the exceptions with theirs."""
    rows = []
    for each in EXIT_STATUSES:
        name = "other" if each.status is None else str(each.status)
        restart = "yes" if each.restart else "no"
        rows.append((f"[{name}](../runbook.md#exit-status-{name})", each.meaning, restart, each.asks))
    classes = [value for name, value in vars(kstreams_py).items() if name in kstreams_py.__all__]
    raised = sorted(
        (each for each in classes if isinstance(each, type) and issubclass(each, KStreamsError)),
        key=lambda each: (each.exit_status, each.__name__),
    )
    of_classes = [
        (code(each.__name__), str(each.exit_status), (inspect.getdoc(each) or "").split("\n")[0]) for each in raised
    ]
    return f"""# Exit statuses

What the exit status of `kstreams run` asks of the supervisor that started it. Each links to what to do by hand.

{table(("status", "means", "restart", "what the supervisor does"), rows)}
Other commands end with 0, or with the status of the exception that they print; `kstreams dead-letters replay` ends with
1 if a letter stays, `kstreams broker status` with 1 if no broker runs.

## Exceptions

A program that calls `ks.run` gets the exception; the command prints it and ends with its status. `ks.Stop`, raised by
a function, commits the steps before and is not a failure.

{table(("exception", "status", "meaning"), of_classes)}"""


# The public names.


def public_names(module: str) -> list[str]:
    """`__all__` of a module, read and not imported: PySpark may be missing."""
    package = Path(kstreams_py.__file__).parent
    path = package.joinpath(*module.split(".")[1:], "__init__.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise LookupError(f"{path} has no __all__")


def options(*described: object) -> str:
    """The options that docstrings list, as help() shows them."""
    rows = [
        (names, kind, " ".join(meaning.split()))
        for each in described
        for names, kind, meaning in re.findall(
            r"^- (`.+?`) \((.+?)\): (.+(?:\n  .+)*)", inspect.getdoc(each) or "", re.MULTILINE
        )
    ]
    return table(("option", "type", "meaning"), rows)


def api() -> str:
    """The public names, for mkdocstrings."""
    parts = []
    for module in PUBLIC:
        names = "\n\n".join(f"::: {module}.{name}" for name in public_names(module))
        parts.append(f"## {module}\n\n{names}\n")
    return f"""# API

`import kstreams_py as ks` has all that a graph needs. What is not on this page is not public, and may change.

## The options of processors

`Graph.map`, `join`, `alts` and `sink` take these options.

{options(OptionsOfAll, Options)}
`Graph.ordered` takes these.

{options(OrderedOptions)}
## The options of graphs, topics and pipelines

`Graph`:

{options(Graph)}
`Graph.topic`:

{options(Graph.topic)}
`Graph.pipeline`:

{options(Graph.pipeline)}
{NEW_LINE.join(parts)}"""


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/settings.md": settings,
    "reference/metrics.md": metrics,
    "reference/commands.md": commands,
    "reference/exit-statuses.md": exit_statuses,
    "reference/api.md": api,
}
"""The pages by their paths below docs/: the built site has them in place of files that say where to look without it."""
