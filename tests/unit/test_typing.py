"""What type checkers know of a graph: the values that a function gets, and the functions that they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = '''
from typing import Any

import kstreams_py as ks


class Celsius:
    """A serde of one's own: any object with these two methods."""

    def serialize(self, value: float, /) -> bytes:
        return str(value).encode()

    def deserialize(self, data: bytes, /) -> float:
        return float(data)


graph = ks.Graph("typed")
names = graph.topic("names", value=ks.String())
orders = graph.topic("orders", key=ks.String(), value=ks.Json())
raw = graph.topic("raw")
measured = graph.topic("measured", value=Celsius())
reveal_type((names, orders, raw, measured))


@graph.map(names, to=raw)
def encode(value: str) -> bytes:
    return value.encode()


@graph.map(orders, to=raw)
def price(order: dict[str, int], step: ks.Step) -> bytes:
    return step.delivery_hash


@graph.sink(measured, batch=True)
def store(values: list[float], steps: list[ks.Step]) -> None: ...


@graph.alts("names", raw, to=orders)
def either(value: str | bytes) -> dict[str, int]:
    return {}


reveal_type((encode, price, store, either))


@graph.map(names, to=raw)  # refused
def takes_an_int(value: int) -> int:
    return value


@graph.map(measured, to=raw, batch=True)  # refused
def takes_no_list(value: float) -> float:
    return value


@graph.sink(raw)  # refused
def takes_text(value: str) -> None: ...


graph.topic("other", value=5)  # refused
graph.map(names, to=raw, stop_on=5)  # refused
'''

TOPICS = (
    "tuple[kstreams_py.graph.declarations.Topic[bytes, str], kstreams_py.graph.declarations.Topic[str, Any], "
    "kstreams_py.graph.declarations.Topic[bytes, bytes], kstreams_py.graph.declarations.Topic[bytes, float]]"
)
FUNCTIONS = (
    "tuple[def (str) -> bytes, def (Any, step: kstreams_py.records.Step) -> bytes, "
    "def (list[float], steps: list[kstreams_py.records.Step]), def (value: str | bytes) -> dict[str, int]]"
)


def test_types_of_topics_reach_the_functions_and_a_function_of_other_values_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.stderr == ""
    assert re.findall(r'note: Revealed type is "(.*)"', done.stdout) == [TOPICS, FUNCTIONS]
    refused = [int(number) for number in re.findall(r"typed\.py:(\d+): error:", done.stdout)]
    marked = [number for number, line in enumerate(PROGRAM.split("\n"), 1) if line.endswith("# refused")]
    assert (done.returncode, refused) == (1, marked), done.stdout
