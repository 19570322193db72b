"""The documentation site: its pages have every setting, series, command and exit status, and say what is so."""

from __future__ import annotations

import inspect
import re
import shutil
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from typer.main import get_command

import kstreams_py
from docs_site import reference
from docs_site.outside import fetched_by_page, fetched_by_style, link_to_repository
from kstreams_py import testing
from kstreams_py.cli.main import app
from kstreams_py.errors import EXIT_STATUSES
from kstreams_py.graph.declarations import OptionsOfAll, OrderedOptions
from kstreams_py.graph.decorators import Decorators
from kstreams_py.jobs.cluster.commands import LeaveReason
from kstreams_py.metrics import RENEWALS, WorkerState
from kstreams_py.running.http.series import meanings
from kstreams_py.settings import OWNED, Settings
from tests.unit.test_options import OPTIONS
from tests.unit.users_tests import run_tests

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
PAGES = {**WRITTEN, **{path: make() for path, make in reference.PAGES.items()}}
TUTORIAL = WRITTEN["tutorial.md"]
RUNBOOK = WRITTEN["runbook.md"]
RECIPES = ROOT / "examples" / "recipes"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def rows(page: str) -> dict[str, list[str]]:
    """The rows of all tables of a page, by their first cell without its code marks."""
    lines = re.findall(r"^\| (.+) \|$", PAGES[page], flags=re.MULTILINE)
    cells = [re.split(r" \| ", line) for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as mkdocs makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    cleaned = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in cleaned}


def test_page_of_settings_has_each_setting_with_its_variable_default_and_meaning() -> None:
    found = {name.split("`<br>`")[0]: [name, *cells] for name, cells in rows("reference/settings.md").items()}
    meanings_of = reference.meanings_of_settings()
    assert meanings_of.keys() == Settings.model_fields.keys()
    for name in Settings.model_fields:
        first, _, _, meaning = found[name]
        assert first.startswith(f"{name}`<br>`KSTREAMS_{name.upper()}"), name
        assert meaning == meanings_of[name]
    assert OWNED.keys() <= found.keys()
    assert found["livez_timeout_ms"][1:3] == ["milliseconds, ≥ 3,000", "not set"]
    assert found["auto_offset_reset"][1:3] == ["`earliest` or `latest`", "`earliest`"]
    assert found["leave_on_stop"][1:3] == ["`true` or `false`", "`false`"]


def test_page_of_metrics_has_each_series_with_its_meaning_and_each_state_and_reason() -> None:
    found = rows("reference/metrics.md")
    assert {name: found[name][-1] for name in meanings()} == dict(meanings())
    assert {state.value for state in WorkerState} | RENEWALS.keys() <= found.keys()


COMMANDS = dict(reference.commands_of(get_command(app)))


def test_page_of_commands_has_each_command_and_its_help_says_what_each_option_means() -> None:
    for words, command in COMMANDS.items():
        section = PAGES["reference/commands.md"].partition(f"## {words}\n")[2].partition("\n## ")[0]
        assert inspect.cleandoc(command.help).split("\n")[0] in section, words
        for each in reference.parameters_of(command):
            assert each.help, (words, each.opts)
            assert f"`{reference.usage_of(each)}`".replace("|", "\\|") in section, words


def test_page_of_commands_names_no_hidden_command_and_all_groups() -> None:
    named = set(re.findall(r"^## (.+)$", PAGES["reference/commands.md"], flags=re.MULTILINE))
    assert named == set(COMMANDS)
    assert "kstreams standby" not in named
    assert {"kstreams run", "kstreams dead-letters replay", "kstreams broker start"} <= named


def test_each_exit_status_is_on_its_page_and_has_a_section_of_the_runbook() -> None:
    found = rows("reference/exit-statuses.md")
    names = ["other" if each.status is None else str(each.status) for each in EXIT_STATUSES]
    for name, each in zip(names, EXIT_STATUSES, strict=True):
        link = f"[{name}](../runbook.md#exit-status-{name})"
        assert found[link] == [each.meaning, "yes" if each.restart else "no", each.asks]
    assert re.findall(r"^### Exit status (\w+)$", RUNBOOK, flags=re.MULTILINE) == names
    for name, value in vars(kstreams_py).items():
        if isinstance(value, type) and issubclass(value, kstreams_py.KStreamsError):
            assert found[name][0] == str(value.exit_status)


def test_page_of_the_api_has_every_public_name() -> None:
    named = set(re.findall(r"^::: (\S+)$", PAGES["reference/api.md"], flags=re.MULTILINE))
    tables = PAGES["reference/api.md"].split("| --- | --- | --- |\n")[1:]
    rows = ["".join(re.findall(r"^\| (`.+?`) \|", each, flags=re.MULTILINE)) for each in tables]
    of_all, of_ordered, *others = (sorted(re.findall(r"`(\w+)`", each)) for each in rows)
    assert of_all == sorted([*OptionsOfAll.__annotations__, "batch"])
    assert of_ordered == sorted(OrderedOptions.__annotations__)
    assert others == [sorted(OPTIONS[each][1]) for each in ("graph", "topic", "pipeline")]
    assert {f"kstreams_py.{name}" for name in kstreams_py.__all__} <= named
    assert {f"kstreams_py.testing.{name}" for name in testing.__all__} <= named
    assert {"kstreams_py.spark.view", "kstreams_py.sinks.SqliteTable", "kstreams_py.embedded.EmbeddedKafka"} <= named


def test_page_of_the_api_has_the_decorators_that_graph_inherits() -> None:
    (plugin,) = (each["mkdocstrings"] for each in SITE["plugins"] if "mkdocstrings" in each)
    inherited = plugin["handlers"]["python"]["options"]["inherited_members"]
    assert inherited == [name for name in vars(Decorators) if not name.startswith("_")]


def test_each_section_of_the_runbook_says_what_happened_how_to_see_it_and_what_to_do() -> None:
    sections = re.split(r"^### ", RUNBOOK, flags=re.MULTILINE)[1:]
    for section in sections:
        parts = re.findall(r"^\*\*([\w ]+)\.\*\* \S", section, flags=re.MULTILINE)
        assert parts == ["What happened", "How to see it", "What to do"], section.split("\n")[0]


ALERTS = RUNBOOK.partition("## By alert")[2]


def test_each_alert_of_the_runbook_is_about_series_states_and_reasons_that_exist() -> None:
    suffixes = ("_bucket", "_sum", "_count")
    for section in re.split(r"^### ", ALERTS, flags=re.MULTILINE)[1:]:
        title, _, expression = section.split("\n")[:3]
        assert re.search(r"`.*(kstreams_\w+|up\{job=).*`", expression), title
        for name in re.findall(r"kstreams_\w+", section):
            base = name.removesuffix(next((end for end in suffixes if name.endswith(end)), ""))
            assert name in meanings() or base in meanings(), f"{title}: {name}"
    assert set(re.findall(r'state="([\w ]+)"', ALERTS)) <= {state.value for state in WorkerState}
    assert set(re.findall(r'reason="(\w+)"', ALERTS)) <= {*RENEWALS, *LeaveReason}


def test_runbook_has_a_section_for_each_alert_rule_and_for_no_other() -> None:
    named = re.findall(r"^### (\w+)$", ALERTS.partition("## By series")[0], flags=re.MULTILINE)
    assert len(named) == len(set(named))
    groups = yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    assert sorted(named) == sorted(rule["alert"] for group in groups for rule in group["rules"])


def test_navigation_has_every_page_once() -> None:
    def paths(entries: Any) -> list[str]:
        if isinstance(entries, str):
            return [entries]
        values = entries.values() if isinstance(entries, dict) else entries
        return [path for each in values for path in paths(each)]

    assert sorted(paths(SITE["nav"])) == sorted(PAGES)


def path_of(target: str, page: str) -> PurePosixPath:
    """The path in the repository to which a link of a page leads."""
    parts: list[str] = []
    for part in (PurePosixPath("docs", page).parent / target).parts if target else ("docs", *PurePosixPath(page).parts):
        parts = parts[:-1] if part == ".." else [*parts, part]
    return PurePosixPath(*parts)


def test_links_of_all_pages_lead_to_pages_anchors_and_files_that_exist() -> None:
    known = {page: anchors(text) for page, text in PAGES.items()}
    for page, whole in [*PAGES.items(), *WRITTEN.items()]:
        text = re.sub(r"```.*?```", "", whole, flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            target, _, anchor = link.partition("#")
            path = path_of(target, page)
            if path.parts[0] != "docs":
                assert (ROOT / path).exists(), (page, link)
                continue
            name = path.relative_to("docs").as_posix()
            assert name in PAGES, (page, link)
            assert not anchor or anchor in known[name], (page, link)


def test_examples_page_has_each_recipe_and_its_tests_as_code() -> None:
    shown = re.findall(
        r"^<!-- (\w+\.py) -->\n```python\n(.*?)^```", WRITTEN["examples.md"], flags=re.MULTILINE | re.DOTALL
    )
    files = [*sorted(RECIPES.glob("*.py")), *sorted((RECIPES / "tests").glob("*.py"))]
    assert len(shown) == len(files) == 20
    # without the docstring of a graph: the page says in its own words what it is for
    assert dict(shown) == {path.name: path.read_text(encoding="utf-8").split('"""\n\n', 1)[-1] for path in files}


def test_pages_are_readable_where_no_site_is_built_of_them() -> None:
    """A plain Git host knows no directives of mkdocs, and shows the pages of reference/ that are in the repository."""
    directives = re.compile(r"^(?:-+8<-+|::: |!!! |\?\?\? )|^``` ?\{", flags=re.MULTILINE)
    assert {page: found for page, text in WRITTEN.items() if (found := directives.findall(text))} == {}
    assert {page for page in WRITTEN if page.startswith("reference/")} == reference.PAGES.keys()
    made = "is made from the code: `scripts/docs` builds it in `build/docs-site`."
    assert [page for page in reference.PAGES if made not in WRITTEN[page]] == []
    titles = {page: PAGES[page].removeprefix(reference.WIDE).split("\n")[0] for page in reference.PAGES}
    assert {page: WRITTEN[page].split("\n")[0] for page in reference.PAGES} == titles


def test_tests_of_the_recipes_pass(tmp_path: Path) -> None:
    shutil.copytree(RECIPES, tmp_path / "recipes", ignore=shutil.ignore_patterns("__pycache__"))
    assert run_tests(tmp_path / "recipes", "tests") == 14


def blocks(version: str) -> dict[str, str]:
    """The tutorial's Python blocks by their file names: the first ones, or those of a later version."""
    found = re.findall(rf"<!-- (\w+\.py){version} -->\n```python\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    return dict(found)


@pytest.mark.long  # with the tutorial as printed
def test_python_of_the_tutorial_passes_its_tests_before_and_after_the_mending(tmp_path: Path) -> None:
    assert blocks("").keys() == {"weather.py", "test_weather.py", "send.py", "read.py"}
    assert len(re.findall("```python", TUTORIAL)) == len(blocks("")) + len(blocks(", mended")) == 6
    for name, text in blocks("").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert run_tests(tmp_path) == 3
    for name, text in blocks(", mended").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert run_tests(tmp_path) == 1


def test_tutorial_names_only_commands_and_options_that_exist() -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, flags=re.DOTALL) for line in block.splitlines()]
    named = [line.split() for line in lines if line.startswith("kstreams ")]
    assert len(named) == 6
    for line in named:
        words = next(words for words in COMMANDS if line[: len(words.split())] == words.split())
        options = {option for each in reference.parameters_of(COMMANDS[words]) for option in each.opts}
        assert {word for word in line if word.startswith("--")} <= options


def test_extra_of_the_site_is_pinned() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    names = {each.lower().replace("_", "-") for each in pinned}  # as PEP 503 normalizes them
    assert {re.split(r"[\[<>=]", each)[0] for each in extra["docs"]} <= names


def test_what_a_page_fetches_from_other_hosts_is_found_and_its_links_are_not() -> None:
    page = """
        <link rel="preconnect" href="https://fonts.example"><link rel="stylesheet" href="assets/main.css">
        <link rel="canonical" href="https://docs.example/"><a href="https://elsewhere.example">elsewhere</a>
        <script src="//cdn.example/a.js"></script><script src="assets/a.js"></script><img src="data:,AA">
    """
    assert fetched_by_page(page) == ["https://fonts.example", "//cdn.example/a.js"]
    style = "@import 'https://a.example/x.css'; p { background: url( \"//b.example/i.png\") } q { src: url(../f.woff) }"
    assert fetched_by_style(style) == ["https://a.example/x.css", "//b.example/i.png"]


def test_links_out_of_the_pages_lead_to_the_repository_and_others_stay() -> None:
    text = "[a](../README.md#how-fast) [b](testing.md) [c](https://example.org/../x) [d](#here)"
    expected = text.replace("../README.md", "https://host/repo/blob/main/README.md", 1)
    assert link_to_repository(text, "index.md", "https://host/repo") == expected
    assert link_to_repository("[a](../runbook.md)", "reference/a.md", "https://host/repo") == "[a](../runbook.md)"
