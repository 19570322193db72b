"""deployment/slot_number.py: the slot of `--slot`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from kstreams_py.cli import run
from kstreams_py.cli.main import app
from kstreams_py.deployment.slot_number import slot_number
from kstreams_py.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "environment", "host", "slot"),
    [
        ("3", {"KSTREAMS_SLOT": "7", "HOSTNAME": "shop-5"}, "shop-6", 3),
        ("0", {}, "shop-6", 0),
        ("auto", {"KSTREAMS_SLOT": "7", "HOSTNAME": "shop-5"}, "shop-6", 7),
        ("auto", {"HOSTNAME": "shop-5"}, "shop-6", 5),
        ("auto", {"HOSTNAME": ""}, "shop-6", 6),
        ("auto", {}, "shop-6.shop.default.svc.cluster.local", 6),
        ("auto", {}, "shop-2-10", 10),
        ("auto", {}, "shop-0", 0),
    ],
)
def test_slot_is_the_number_or_that_of_the_variable_or_that_of_the_pod(
    text: str, environment: dict[str, str], host: str, slot: int
) -> None:
    assert slot_number(text, environment, host) == slot


@pytest.mark.parametrize("host", ["vm", "shop-", "-3", "shop-03", "shop-x7", "shop-7d9f8b6c5d-24579", "shop3", "a.b-3"])
def test_auto_without_a_number_names_the_variable_and_the_host(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        slot_number("auto", {}, host)
    assert str(caught.value) == (
        f"--slot auto found no number: KSTREAMS_SLOT is not set, and the host name {host!r} is not the name "
        "of a StatefulSet's pod, such as shop-3: set KSTREAMS_SLOT, or give --slot a number"
    )


@pytest.mark.parametrize("number", ["", "x", "-1", "1.5", " 3", "٣", "9999999999"])
def test_variable_that_is_no_slot_is_refused_although_the_pod_has_one(number: str) -> None:
    with pytest.raises(SettingsError) as caught:
        slot_number("auto", {"KSTREAMS_SLOT": number}, "shop-3")
    assert str(caught.value) == f"KSTREAMS_SLOT={number!r} is not a slot: set 0 or a higher number"


@pytest.mark.parametrize("text", ["", "x", "-1", "Auto", "1-2"])
def test_text_that_is_no_slot_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        slot_number(text, {"KSTREAMS_SLOT": "1"}, "shop-3")
    assert str(caught.value) == f"--slot {text!r} is not a slot: write 0 or a higher number, or auto"


@pytest.mark.parametrize(
    ("option", "variables", "slot"),
    [("auto", {"HOSTNAME": "shop-5"}, 5), ("auto", {"HOSTNAME": "shop-5", "KSTREAMS_SLOT": "0"}, 0), ("2", {}, 2)],
)
def test_command_runs_that_slot(
    option: str, variables: Mapping[str, str], slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(run, "load", lambda target: target)
    monkeypatch.setattr(run, "SlotRun", lambda graph, number, *_, **__: started.append(number))
    monkeypatch.setattr(run, "run_in_foreground", lambda _: None)
    done = CliRunner().invoke(app, ["run", "shop.py", "--slot", option], env=variables, catch_exceptions=False)
    assert (done.exit_code, started) == (0, [slot])


def test_command_without_a_number_to_be_found_ends_as_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KSTREAMS_SLOT", raising=False)
    with pytest.raises(SettingsError, match=r"^--slot auto found no number: KSTREAMS_SLOT is not set, and the host na"):
        CliRunner().invoke(app, ["run", "shop.py", "--slot", "auto"], env={"HOSTNAME": "shop"}, catch_exceptions=False)
