"""`kstreams config`: shows the settings that a command with the same options and environment uses."""

from __future__ import annotations

import typer

from kstreams_py.cli.options import Bootstrap, Config
from kstreams_py.cli.streams import echo
from kstreams_py.settings import explain

app = typer.Typer(help="The settings.", no_args_is_help=True)


@app.command()
def show(bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print each setting, its value and its origin. Secrets are shown as ***."""
    shown = explain(config, bootstrap_servers=bootstrap_servers)
    name, value = (max(len(each[column]) for each in shown) for column in (0, 1))
    for each in shown:
        echo(f"{each.name:{name}}  {each.value:{value}}  {each.origin}")
