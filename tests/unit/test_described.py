"""Dead letters as text and as JSON, and the times of `--since`."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, cast

import pytest

import kstreams_py as ks
from kstreams_py.cli.options import parse_time
from kstreams_py.errors import SettingsError
from kstreams_py.operations.dead_letters.text import Describer, group_as_json, groups_as_text, show_bytes, show_time
from kstreams_py.processing.dead_letters.letters import Input, Letter, LetterPlace, Mark, group
from kstreams_py.testing import MemoryRegistry

AT = 1_600_000_000_123


def make_letter(*inputs: Input, offset: int = 5, message: str = "'price'", cut: str = "") -> Letter:
    return Letter(
        LetterPlace("dead", 0, offset),
        AT,
        "shop.price",
        bytes(range(16)),
        "builtins.KeyError",
        message,
        "Traceback:\n  KeyError\n",
        inputs,
        cut,
    )


@pytest.fixture
def describer() -> Describer:
    graph = ks.Graph("shop", errors="dead")
    graph.topic("orders", key=ks.String(), value=ks.Json())
    return Describer(graph, MemoryRegistry())


def test_json_of_a_letter_has_its_inputs_decoded_by_the_serdes_of_the_graph(describer: Describer) -> None:
    read = Input("orders", 1, 7, AT, b"order-1", b'{"quantity": 2}', (("trace", b"\xff"), ("none", None)))
    assert json.loads(describer.as_json(make_letter(read, cut="traceback: cut"), Mark(AT))) == {
        "letter": {"topic": "dead", "partition": 0, "offset": 5},
        "time": "2020-09-13T12:26:40Z",
        "processor": "shop.price",
        "delivery_hash": "000102030405060708090a0b0c0d0e0f",
        "error": "builtins.KeyError",
        "message": "'price'",
        "traceback": "Traceback:\n  KeyError\n",
        "inputs": [
            {
                "topic": "orders",
                "partition": 1,
                "offset": 7,
                "time": "2020-09-13T12:26:40Z",
                "key": "order-1",
                "value": {"quantity": 2},
                "headers": [["trace", "b'\\xff'"], ["none", None]],
            }
        ],
        "cut": "traceback: cut",
        "replayed": True,
        "discarded": None,
    }


def test_discarded_letter_is_shown_with_the_reason_and_the_time(describer: Describer) -> None:
    letter, mark = make_letter(Input("orders", 1, 7, AT, None, None, ())), Mark(AT, "test data")
    assert describer.as_text(letter, mark).splitlines()[:2] == [
        "dead[0]@5  shop.price  2020-09-13T12:26:40Z",
        "  discarded  2020-09-13T12:26:40Z: test data",
    ]
    shown = json.loads(describer.as_json(letter, mark))
    assert (shown["replayed"], shown["discarded"]) == (False, {"time": "2020-09-13T12:26:40Z", "reason": "test data"})


def test_text_of_a_letter_has_place_error_inputs_and_traceback(describer: Describer) -> None:
    read = Input("orders", 1, 7, -1, None, b'{"quantity": 2}', (("trace", b"1"),))
    assert describer.as_text(make_letter(read)).splitlines() == [
        "dead[0]@5  shop.price  2020-09-13T12:26:40Z",
        "  error      KeyError: 'price'",
        "  delivery   000102030405060708090a0b0c0d0e0f",
        "  input      orders[1]@7  no time",
        "    key      null",
        '    value    {"quantity": 2}',
        "    header   trace: 1",
        "  | Traceback:",
        "  |   KeyError",
    ]


@pytest.mark.parametrize(
    ("topic", "value", "shown"),
    [
        ("orders", b"{not json", "{not json"),
        ("orders", b"\x00\xff", "b'\\x00\\xff'"),
        ("gone", b"text", "text"),
        ("gone", b"two\nlines", "b'two\\nlines'"),
        ("gone", None, None),
    ],
)
def test_bytes_that_no_serde_reads_are_shown_as_text_or_literal(
    describer: Describer, topic: str, value: bytes | None, shown: str | None
) -> None:
    letter = make_letter(Input(topic, 0, 0, AT, None, value, ()))
    assert json.loads(describer.as_json(letter))["inputs"][0]["value"] == shown


def test_values_that_json_does_not_have_are_shown_as_text() -> None:
    class Dates:
        def serialize(self, value: datetime, /) -> bytes:
            return value.isoformat().encode()

        def deserialize(self, data: bytes, /) -> dict[str, object]:
            return {"at": datetime.fromisoformat(data.decode()), "raw": [data], "n": 1}

    graph = ks.Graph("shop", errors="dead")
    graph.topic("dates", value=cast("Any", Dates()))
    describer = Describer(graph, MemoryRegistry())
    letters = [make_letter(Input("dates", 0, 0, AT, None, data, ())) for data in (b"2026-05-01T12:00:00", b"never")]
    found = [json.loads(describer.as_json(letter))["inputs"][0]["value"] for letter in letters]
    assert found == [{"at": "2026-05-01 12:00:00", "raw": ["2026-05-01T12:00:00"], "n": 1}, "never"]


def test_table_has_a_row_for_each_group_and_below_it_the_newest_that_waits() -> None:
    marks = [None, None, Mark(AT), *(Mark(AT, why) for why in ("test data", "b", "c", "d", "test data"))]
    letters = [(make_letter(offset=n, message=f"m{n}\n" + "x" * (200 * n)), mark) for n, mark in enumerate(marks)]
    groups = group(letters)
    assert groups_as_text(groups).splitlines() == [
        "processor   error     waiting  replayed  discarded  first                 last",
        "shop.price  KeyError        2         1          5  2020-09-13T12:26:40Z  2020-09-13T12:26:40Z",
        f"    dead[0]@1: m1 {'x' * 97}... (203 characters)",
        "    2 discarded: test data",
        "    1 discarded: b",
        "    1 discarded: c",
        "    1 discarded for other reasons",
    ]
    ((processor, error),) = groups
    assert json.loads(group_as_json(processor, error, groups[processor, error])) == {
        "processor": "shop.price",
        "error": "builtins.KeyError",
        "waiting": 2,
        "replayed": 1,
        "discarded": 5,
        "reasons": {"test data": 2, "b": 1, "c": 1, "d": 1},
        "first": "2020-09-13T12:26:40Z",
        "last": "2020-09-13T12:26:40Z",
        "message": "m1\n" + "x" * 200,
        "letter": {"topic": "dead", "partition": 0, "offset": 1},
    }


def test_times_and_bytes_of_any_size_are_shown() -> None:
    assert [show_time(at) for at in (-1, 0, 1 << 62)] == [None, "1970-01-01T00:00:00Z", f"{1 << 62} ms"]
    assert [show_bytes(data) for data in (b"", "ä".encode(), b"\x07")] == ["", "ä", "b'\\x07'"]


def test_since_is_a_time_or_so_long_ago_and_all_else_is_refused() -> None:
    now = 1_600_000_000.0
    found = [parse_time("--since", text, now) for text in (None, "30s", "5m", "1h", "2d")]
    assert found == [None, 1_599_999_970_000, 1_599_999_700_000, 1_599_996_400_000, 1_599_827_200_000]
    assert parse_time("--since", "2020-09-13T12:00Z", now) == 1_599_998_400_000
    noon, before = (parse_time("--since", f"2020-09-13T{hour}:00", now) or 0 for hour in (12, 11))
    assert noon - before == 3_600_000
    for text in ("", "1", "h", "-1h", "1w", "yesterday"):
        with pytest.raises(SettingsError, match="such as 1h, or a time such as"):
            parse_time("--since", text, now)
