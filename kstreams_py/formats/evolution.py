"""The evolution of Avro schemas: whether a new schema can read data of an older one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.formats.schemas import JsonSchema, Names, kind_of, name_of, parse

_PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


_LOGICAL: Final = frozenset(
    {"decimal", "big-decimal", "uuid", "duration", "date"}
    | {"time-millis", "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"}
    | {"local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"}
)
"""The logical types of the Avro 1.12 specification: two different ones give the same number different meanings."""


def unreadable(reader: JsonSchema, writer: JsonSchema, *, any_value: bool = False) -> str | None:
    """Returns the reason, with the field, why the reader's schema cannot read data of the writer's; None if it can.

    - `any_value`: also returns None if the reader's schema can read only some values: a branch of a union, a symbol.

    The rules come from "Schema Resolution" in the Avro 1.11 specification, applied to the schemas alone, as far as
    fastavro follows them (names are compared without their namespace).
    """
    parsed_reader, readers = parse(reader, "the reader's schema")
    parsed_writer, writers = parse(writer, "the writer's schema")
    return next(
        _Resolution(readers, writers, set(), any_value).problems(parsed_reader, parsed_writer, name_of(parsed_reader)),
        None,
    )


class _Clash(str):
    """A reason that counts for all branches: a reader would not notice that it reads such values wrongly."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Resolution:
    """A comparison of two schemas: their named types, and the pairs of names that were compared."""

    readers: Names
    writers: Names
    compared: set[tuple[str, str]]
    any_value: bool

    def problems(self, r: Any, w: Any, where: str) -> Iterator[str]:
        """Yields the reasons why `r` cannot read `w`; `where` is the path of the field."""
        r = self.readers.get(r, r) if isinstance(r, str) else r
        w = self.writers.get(w, w) if isinstance(w, str) else w
        if isinstance(w, list):
            found = [next(self.problems(r, branch, where), None) for branch in w]
            is_problem = not self.any_value or all(found)
            yield from (each for each in found if each and (is_problem or isinstance(each, _Clash)))
            return
        if isinstance(r, list):
            tried = [(next(self.problems(branch, w, where), None), branch) for branch in r]
            if all(problem for problem, _ in tried):
                alike = [problem for problem, branch in tried if kind_of(branch, self.readers) == kind_of(w, {})]
                yield alike[0] if len(alike) == 1 and alike[0] else f"{where} was {name_of(w)} and is {name_of(r)}"
            return
        was, now = kind_of(w, {}), kind_of(r, {})
        if was != now and now not in _PROMOTIONS.get(was, ()):
            yield f"{where} was {name_of(w)} and is {name_of(r)}"
        elif meanings := self._clash(r, w):
            yield _Clash(f"{where} was {meanings[0]} and is {meanings[1]}")
        elif was == now:
            yield from self._inside(was, r, w, where)

    def _inside(self, kind: str, r: Any, w: Any, where: str) -> Iterator[str]:
        """Yields the reasons inside two types of one kind."""
        if kind in ("array", "map"):
            inner = {"array": "items", "map": "values"}[kind]
            yield from self.problems(r[inner], w[inner], f"{where}.{inner}")
        elif kind in ("record", "error", "enum", "fixed"):
            yield from self._named(kind, r, w, where)

    def _clash(self, r: Any, w: Any) -> tuple[str, str] | None:
        """Returns what a value means to the writer and to the reader, if both have logical types and these differ."""
        was, now = (str(each.get("logicalType")) if isinstance(each, dict) else "" for each in (w, r))
        if not _LOGICAL.issuperset((was, now)):
            return None
        if was != now:
            return was, now
        if was != "decimal":
            return None
        (precision, scale), (wanted, wanted_scale) = ((each.get("precision"), each.get("scale", 0)) for each in (w, r))
        if scale == wanted_scale and (self.any_value or not precision or not wanted or precision <= wanted):
            return None
        return f"decimal({precision}, {scale})", f"decimal({wanted}, {wanted_scale})"

    def _named(self, kind: str, r: Any, w: Any, where: str) -> Iterator[str]:
        """Yields the reasons for named types, whose names must agree or be aliases."""
        short = w["name"].rpartition(".")[2]
        if short != r["name"].rpartition(".")[2] and not {short, w["name"]} & set(r.get("aliases", ())):
            yield f"{where} was {w['name']} and is {r['name']}"
        elif kind == "fixed" and r["size"] != w["size"]:
            yield f"{where} had {w['size']} bytes and has {r['size']}"
        elif kind == "enum" and "default" not in r and (lost := self._lost(r["symbols"], w["symbols"])):
            yield f"{where} has lost the symbol {min(lost)} and has no default"
        elif kind in ("record", "error") and (r["name"], w["name"]) not in self.compared:
            self.compared.add((r["name"], w["name"]))
            written = {field["name"]: field for field in w["fields"]}
            for field in r["fields"]:
                path = f"{where}.{field['name']}"
                old = next((written[n] for n in (field["name"], *field.get("aliases", ())) if n in written), None)
                if old is not None:
                    yield from self.problems(field["type"], old["type"], path)
                elif "default" not in field:
                    yield f"{path} is new and has no default"

    def _lost(self, now: Iterable[str], was: Iterable[str]) -> set[str]:
        """Returns the symbols that the reader lacks; none with `any_value`, unless it lacks all of them."""
        lost = set(was) - set(now)
        return set() if self.any_value and lost != set(was) else lost
