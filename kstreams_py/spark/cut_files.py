"""A cut as a file."""

from __future__ import annotations

from pathlib import Path

from kstreams_py.errors import UserMistake
from kstreams_py.spark.cuts import Cut


def write_cut(cut: Cut, path: Path | str) -> None:
    """Writes a cut to a file, and replaces an existing one. Raises UserMistake if it cannot be written."""
    path = Path(path)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(cut.encode() + "\n", encoding="utf-8")
        part.replace(path)  # a reader always finds the old file or the new one
    except OSError as error:
        raise UserMistake(f"{path}: the cut cannot be written: {error.strerror}") from None


def read_cut(path: Path | str) -> Cut:
    """Reads a cut from a file. Raises UserMistake if there is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserMistake(f"{path}: no cut can be read: {error.strerror}: make one with `kstreams cut`") from None
    except UnicodeDecodeError:
        raise UserMistake(f"{path}: not a cut: it is not text: make one with `kstreams cut`") from None
    return Cut.decode(text, str(path))
