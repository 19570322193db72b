"""Shows dead letters as text and as JSON; the graph's serdes decode their inputs where they can."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kstreams_py.errors import DecodeError, KStreamsError
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.topology import Graph
from kstreams_py.printable import join_lines
from kstreams_py.processing.dead_letters.letters import Input, Letter, LetterGroup, Mark

EXAMPLE_LENGTH: Final = 100
"""The maximum length of an example's message in the list."""

REASONS_SHOWN: Final = 3
"""The maximum number of reasons that the list shows for a group; JSON has all of them."""

VALUE_LENGTH: Final = 2_000
"""The maximum length of a key, value or header in the text; JSON has all of it."""


def show_time(milliseconds: int) -> str | None:
    """Returns a timestamp in UTC as ISO 8601, to the second; None if it is negative."""
    try:
        return None if milliseconds < 0 else datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%FT%TZ")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"


def show_bytes(data: bytes) -> str:
    """Returns bytes as text if they are printable UTF-8, otherwise as a Python bytes literal."""
    try:
        text = data.decode()
    except ValueError:
        return repr(data)
    return text if text.isprintable() else repr(data)


class Describer:
    """Describes dead letters of one graph."""

    def __init__(self, graph: Graph, registry: Registry) -> None:
        self._graph = graph
        self._registry = registry
        self._decode: dict[tuple[str, str], Callable[[bytes], Any] | None] = {}

    def as_json(self, letter: Letter, mark: Mark | None = None) -> str:
        """Returns a dead letter as one line of JSON, with all its fields, its inputs decoded, and its mark."""
        place = {"letter": letter.place._asdict(), "time": show_time(letter.timestamp)}
        is_discarded = mark is not None and mark.is_discard
        of_mark = {
            "replayed": mark is not None and not is_discarded,
            "discarded": {"time": show_time(mark.timestamp), "reason": mark.reason} if mark and is_discarded else None,
        }
        return json.dumps(place | self.content(letter) | of_mark, default=str, ensure_ascii=False)

    def content(self, letter: Letter) -> dict[str, Any]:
        """Returns the content of a dead letter as JSON values: the processor, the error, the decoded inputs."""
        return {
            "processor": letter.processor,
            "delivery_hash": letter.delivery_hash.hex(),
            "error": letter.error,
            "message": letter.message,
            "traceback": letter.traceback,
            "inputs": [self._input(each) for each in letter.inputs],
            "cut": letter.cut or None,
        }

    def as_text(self, letter: Letter, mark: Mark | None = None) -> str:
        """Returns a dead letter as several lines: the place and its mark, the error, each input, the traceback."""
        lines = [
            f"{letter.place}  {letter.processor}  {show_time(letter.timestamp) or 'no time'}"
            + ("  (replayed)" if mark and not mark.is_discard else ""),
            *([f"  discarded  {show_time(mark.timestamp)}: {_brief(mark.reason)}"] if mark and mark.is_discard else []),
            f"  error      {show_class(letter.error)}: {letter.message}",
            f"  delivery   {letter.delivery_hash.hex()}",
        ]
        for each in letter.inputs:
            shown = self._input(each)
            lines.append(f"  input      {each}  {shown['time'] or 'no time'}")
            lines.append(f"    key      {_brief(shown['key'])}")
            lines.append(f"    value    {_brief(shown['value'])}")
            lines += [f"    header   {name}: {_brief(value)}" for name, value in shown["headers"]]
        if letter.cut:
            lines.append(f"  cut        {letter.cut}")
        if letter.traceback:
            lines += [f"  | {line}" for line in letter.traceback.rstrip("\n").split("\n")]
        return join_lines(lines)

    def _input(self, each: Input) -> dict[str, Any]:
        return {
            "topic": each.name,
            "partition": each.number,
            "offset": each.at,
            "time": show_time(each.milliseconds),
            "key": self._decoded(each.name, "key", each.own_key),
            "value": self._decoded(each.name, "value", each.data),
            "headers": [(name, None if value is None else show_bytes(value)) for name, value in each.pairs],
        }

    def _decoded(self, topic: str, role: str, data: bytes | None) -> Any:
        """Returns a key or value as a JSON value; its bytes as text if no serde decodes them."""
        if data is None:
            return None
        if (topic, role) not in self._decode:
            declared = self._graph.topics.get(topic)
            self._decode[topic, role] = (
                None
                if declared is None
                else bind(getattr(declared, role), self._registry, f"{topic}-{role}").deserialize
            )
        decode = self._decode[topic, role]
        try:
            value = data if decode is None else decode(data)
        except DecodeError:
            value = data
        except KStreamsError:  # the registry failed, and these bytes may be valid
            raise
        except Exception:  # a user's own serde may raise anything
            value = data
        return _plain(value)


def show_class(name: str) -> str:
    """Returns the name of an exception's class, without the module if that is builtins or kstreams_py.errors."""
    return name.removeprefix("builtins.").removeprefix("kstreams_py.errors.")


def group_as_json(processor: str, error: str, each: LetterGroup) -> str:
    """Returns a group of dead letters as one line of JSON."""
    content = {
        "processor": processor,
        "error": error,
        "waiting": each.waiting,
        "replayed": each.replayed,
        "discarded": each.discarded,
        "reasons": dict(each.reasons),
        "first": show_time(each.first),
        "last": show_time(each.last),
        "message": each.example.message,
        "letter": each.example.place._asdict(),
    }
    return json.dumps(content, ensure_ascii=False)


def groups_as_text(groups: Mapping[tuple[str, str], LetterGroup]) -> str:
    """Returns a table of groups: processor, exception class, counts, first and last time.

    Below each group are an example, and the reasons why its dead letters were discarded.
    """
    head = ("processor", "error", "waiting", "replayed", "discarded", "first", "last")
    rows = [
        (
            processor,
            show_class(error),
            f"{each.waiting:,}",
            f"{each.replayed:,}",
            f"{each.discarded:,}",
            show_time(each.first) or "no time",
            show_time(each.last) or "no time",
        )
        for (processor, error), each in groups.items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        sized = zip(cells, widths, strict=True)
        padded = [cell.rjust(width) if i in (2, 3, 4) else cell.ljust(width) for i, (cell, width) in enumerate(sized)]
        return "  ".join(padded).rstrip()

    lines = [line(head)]
    for row, each in zip(rows, groups.values(), strict=True):
        lines.append(line(row))
        lines.append(f"    {each.example.place}: {_brief(each.example.message, EXAMPLE_LENGTH)}")
        shown = each.reasons.most_common(REASONS_SHOWN)
        lines += [f"    {count:,} discarded: {_brief(reason, EXAMPLE_LENGTH)}" for reason, count in shown]
        if more := each.discarded - sum(count for _, count in shown):
            lines.append(f"    {more:,} discarded for other reasons")
    return join_lines(lines)


def _brief(value: Any, length: int = VALUE_LENGTH) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = " ".join(text.splitlines()) if isinstance(value, str) else text
    return text if len(text) <= length else f"{text[:length]}... ({len(text):,} characters)"


def _plain(value: Any) -> Any:
    """Returns a value that JSON can represent: bytes as text, other objects by their str."""
    if isinstance(value, bytes):
        return show_bytes(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
