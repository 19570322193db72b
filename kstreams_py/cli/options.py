"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(help="path/to/file.py or module; add :name if it has several graphs"),
]
Bootstrap = Annotated[str | None, typer.Option("--bootstrap-servers", "-b", help="host:port,... of the cluster")]
Partitions = Annotated[
    int | None,
    typer.Option(
        help="partitions of new topics, where neither the graph nor existing topics decide; by default 4",
        min=1,
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="a TOML file of settings, with librdkafka's under [kafka]")
]
