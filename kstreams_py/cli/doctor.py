"""`kstreams doctor`: finds what holds readers back or endangers a promise, each with its remedy."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kstreams_py.cli.options import AsJson, Bootstrap, Config, load_valid, open_environment
from kstreams_py.cli.streams import echo, echo_lines
from kstreams_py.operations.doctor.diagnosis import diagnose, is_well
from kstreams_py.operations.doctor.facts import Examination
from kstreams_py.operations.doctor.findings import Examined, as_fields, describe
from kstreams_py.settings import Settings


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="path/to/file.py or module; add :name if it has several graphs; without it, only the cluster is "
            "examined"
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Find what holds readers back or endangers a promise. Exit status 0 for notes at most, 1 for warnings or errors.

    Prints each finding with its severity (error, warning, note), its meaning and a remedy; changes nothing. A note
    names what this user may not see. To see everything, a user needs DESCRIBE and DESCRIBE_CONFIGS on the cluster and
    the topics, READ on the topics, and DESCRIBE on the groups and the transactional ids.
    """
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    examined = None
    if target is not None:
        examined = Examined(load_valid(target), target, settings.transaction_timeout_ms)
    with open_environment(settings) as environment:
        findings = diagnose(Examination(environment, examined).collect(), examined)
    for finding in findings:
        echo_lines(json.dumps(as_fields(finding)) if as_json else describe(finding))
    if not findings and not as_json:
        echo("no problems found")
    if not is_well(findings):
        raise typer.Exit(1)
