"""Arguments and options that several commands share."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.running.slot_number import slot_number

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
Slot = Annotated[
    int | None,
    typer.Option(
        "--slot",
        parser=lambda text: slot_number(text, os.environ, socket.gethostname()),
        metavar="NUMBER|auto",
        help="run this one slot in this process, under your own supervisor; auto takes the number from KSTREAMS_SLOT, "
        "or from the name of a StatefulSet's pod",
    ),
]
