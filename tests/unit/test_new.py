"""`kstreams new`: the project that it writes is tested, linted and run; what exists is not overwritten."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from kstreams_py.cli.main import app
from kstreams_py.development import project
from kstreams_py.embedded.jars import KAFKA_VERSION
from kstreams_py.errors import SettingsError
from kstreams_py.graph.loading import load
from kstreams_py.settings import Settings

ROOT = Path(__file__).parents[2]


def new(name: str) -> Result:
    return CliRunner().invoke(app, ["new", name])


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])  # `load` adds the project's directory


@pytest.mark.long  # in the quick tier, test_new.py of a broker runs the project
def test_project_is_written_whole_and_its_own_tests_and_linters_pass(tmp_path: Path) -> None:
    done = new("billing")
    assert done.exit_code == 0, done.exception
    directory = tmp_path / "billing"
    files = sorted(path.relative_to(tmp_path).as_posix() for path in directory.rglob("*") if path.is_file())
    hidden = (".dockerignore", ".gitignore")
    names = (
        *hidden,
        "Dockerfile",
        "README.md",
        "billing.py",
        "compose.yaml",
        "pyproject.toml",
        "tests/test_billing.py",
    )
    assert files == [f"billing/{name}" for name in names]
    assert sorted(done.stdout.splitlines()[:-2]) == files
    assert done.stdout.splitlines()[-1] == "next: cd billing, then the commands of README.md"
    assert [path for path in files if "shop" in (tmp_path / path).read_text(encoding="utf-8")] == []
    assert "3 passed" in run("pytest", "-W", "error", "-p", "no:cacheprovider", "-p", "kstreams_pytest", cwd=directory)
    run("ruff", "check", "--no-cache", ".", cwd=directory)
    run("ruff", "format", "--no-cache", "--check", ".", cwd=directory)
    graph = load(f"{directory / 'billing.py'}")
    graph.validate()
    assert (graph.name, sorted(graph.topics)) == (
        "billing",
        ["billing.errors", "billing.orders", "billing.priced", "billing.refused"],
    )


def test_pyproject_installs_the_module_with_extras_that_exist(tmp_path: Path) -> None:
    new("billing")
    written = tomllib.loads((tmp_path / "billing" / "pyproject.toml").read_text(encoding="utf-8"))
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (written["project"]["name"], written["tool"]["setuptools"]["py-modules"]) == ("billing", ["billing"])
    assert written["project"]["requires-python"] == ours["requires-python"]
    required = [*written["project"]["dependencies"], *written["project"]["optional-dependencies"]["dev"]]
    named = [each.partition("[")[2].rstrip("]") for each in required if each.startswith(ours["name"])]
    assert named == ["metrics", "broker,reload"]
    assert set(",".join(named).split(",")) <= set(ours["optional-dependencies"])


# Containers.

KEYS_OF_A_SERVICE = {
    "build", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "ports", "restart",
    "stop_grace_period", "volumes",
}  # fmt: skip
"""Those of the Compose Specification that the file may use."""


@pytest.fixture
def compose(tmp_path: Path) -> dict[str, Any]:
    """The compose.yaml of a new project."""
    new("billing")
    found: dict[str, Any] = yaml.safe_load((tmp_path / "billing" / "compose.yaml").read_text(encoding="utf-8"))
    return found


def steps(path: Path) -> list[str]:
    """The RUN steps of a Dockerfile, without their lines."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [" ".join(each.split()) for each in re.findall(r"^RUN (.+)$", text, flags=re.MULTILINE)]


def test_compose_has_the_form_of_the_specification(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(compose) == {"name", "x-worker", "services", "volumes"}
    assert (compose["name"], set(services)) == ("billing", {"kafka", "worker-0", "worker-1"})
    for service in services.values():
        assert set(service) <= KEYS_OF_A_SERVICE
        assert all(isinstance(value, str) for value in service["environment"].values())
        assert all(isinstance(word, str) for key in ("command", "entrypoint") for word in service.get(key, []))
        assert set(service["healthcheck"]) == {"test", "interval", "timeout", "start_period", "retries"}
        assert service["healthcheck"]["test"][0] == "CMD"
        assert {volume.split(":")[0] for volume in service["volumes"]} <= set(compose["volumes"])
        durations = [service["stop_grace_period"], *(service["healthcheck"][n] for n in ("interval", "timeout"))]
        assert all(re.fullmatch(r"\d+s", each) for each in durations)


def test_workers_of_compose_have_a_slot_each_and_run_as_those_of_this_repository(compose: dict[str, Any]) -> None:
    ours = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]["worker-0"]
    for number in range(2):
        worker = compose["services"][f"worker-{number}"]
        assert worker["command"] == ["run", "billing.py", "--slot", str(number), "--create-topics"]
        same = ("entrypoint", "restart", "stop_grace_period", "volumes")
        assert {key: worker[key] for key in same} == {key: ours[key] for key in same}
        assert worker["depends_on"] == {"kafka": {"condition": "service_healthy"}}
        assert worker["ports"] == [f"127.0.0.1:{8080 + number}:8080"]
        assert worker["environment"]["KSTREAMS_HTTP"] == "0.0.0.0:8080"
        assert "http://127.0.0.1:8080/livez" in worker["healthcheck"]["test"][-1]
        assert (worker["build"], worker["image"]) == (".", "billing")


def test_broker_of_compose_is_the_tested_kafka_at_the_addresses_of_clients(compose: dict[str, Any]) -> None:
    broker = compose["services"]["kafka"]
    environment = broker["environment"]
    assert broker["image"] == f"apache/kafka:{KAFKA_VERSION}"
    advertised = dict(each.split("://") for each in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
    listening = dict(each.split("://") for each in environment["KAFKA_LISTENERS"].split(","))
    assert advertised["INSIDE"] == compose["services"]["worker-0"]["environment"]["KSTREAMS_BOOTSTRAP_SERVERS"]
    assert broker["ports"] == [f"{advertised['OUTSIDE']}{listening['OUTSIDE']}"]
    assert advertised["OUTSIDE"] == Settings.model_fields["bootstrap_servers"].default
    assert broker["volumes"] == [f"kafka:{environment['KAFKA_LOG_DIRS']}"]
    assert f"/127.0.0.1{listening['INSIDE'].replace(':', '/')}" in broker["healthcheck"]["test"][-1]


def test_image_of_a_project_is_built_by_the_steps_of_the_worker_image(tmp_path: Path) -> None:
    new("billing")
    own, ours = steps(tmp_path / "billing" / "Dockerfile"), steps(ROOT / "docker" / "Dockerfile")
    names = (("/opt/kstreams", "/opt/venv"), ("kstreams /data /graph", "kstreams /data"), ("kstreams", "worker"))
    for ours_name, own_name in names:
        ours = [step.replace(ours_name, own_name) for step in ours]
    (other,) = [step for step in own if step not in ours]
    assert other == (
        "python3 -c \"import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], "
        "sep='\\n')\" >requirements.txt && /opt/venv/bin/pip install --no-cache-dir -r requirements.txt"
    )
    assert len(own) == 4
    text = (tmp_path / "billing" / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^(?:USER|ENTRYPOINT) .+$", text, flags=re.MULTILINE) == [
        "USER worker", 'ENTRYPOINT ["tini", "--", "kstreams"]'
    ]  # fmt: skip


def test_graph_of_a_project_is_the_example_of_readme() -> None:
    body = [
        (path.read_text(encoding="utf-8").split('"""\n\n', 1)[1])
        for path in (project.FILES / "shop.py.in", ROOT / "examples" / "shop.py")
    ]
    assert body[0] == body[1]


@pytest.mark.parametrize("name", ["Shop", "../shop", "2shop", "a-b", "shop_", "a__b", "_a", ""])
def test_name_that_no_module_can_have_is_refused(name: str, tmp_path: Path) -> None:
    error = new(name).exception
    assert isinstance(error, SettingsError)
    assert str(error) == f"{name!r} cannot be the name of a module: write a-z, 0-9 and single _, a letter first"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "kafka", "pytest", "tests"])
def test_name_that_would_hide_a_module_is_refused(name: str, tmp_path: Path) -> None:
    error = new(name).exception
    assert str(error) == f"{name!r} is the name of a module that is there already: choose another name"
    assert list(tmp_path.iterdir()) == []


def test_directory_or_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").write_text("kept")
    for name in ("one", "two"):
        error = new(name).exception
        assert str(error) == f"{name} exists, and nothing is overwritten: choose another name, or remove it"
    assert (list((tmp_path / "one").iterdir()), (tmp_path / "two").read_text()) == ([], "kept")


def test_project_that_cannot_be_written_whole_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Path.write_text

    def full(path: Path, *arguments: str, **options: str) -> int:
        if path.name == "billing.py":
            raise OSError(28, os.strerror(28))
        return written(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    error = new("billing").exception
    assert str(error) == "billing cannot be written: No space left on device: choose another directory"
    assert list(tmp_path.iterdir()) == []
