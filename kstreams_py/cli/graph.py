"""`kstreams graph`: shows a graph as text or as a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.cli.options import Target, load_valid
from kstreams_py.cli.streams import echo_lines
from kstreams_py.errors import SettingsError
from kstreams_py.graph import picture


class PictureFormat(StrEnum):
    """The formats of `kstreams graph`."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


def graph(
    target: Target,
    form: Annotated[PictureFormat, typer.Option("--format", "-f", help="text, mermaid or svg")] = PictureFormat.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="write to this file instead of the terminal")
    ] = None,
) -> None:
    """Describe a graph as text, Mermaid or SVG."""
    found = load_valid(target, needs_processors=False)
    drawn = {"text": picture.text, "mermaid": picture.mermaid, "svg": picture.svg}[form](found)
    if output is None:
        echo_lines(drawn)
    else:
        try:
            output.write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"--output {output} cannot be written: {error.strerror}: choose another file") from None
