"""The evolution of Avro schemas: whether a new one reads what an older one wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def unreadable(reader: JsonSchema, writer: JsonSchema) -> str | None:
    """The reason, with the field, why the reader's schema cannot read data of the writer's; None if it can read all.

    The rules are those of "Schema Resolution" in the Avro 1.11 specification, applied to the schemas alone, as far as
    fastavro follows them (names are compared without their namespace).
    """
    parsed_reader, readers = parse(reader, "the reader's schema")
    parsed_writer, writers = parse(writer, "the writer's schema")
    return next(
        _Resolution(readers, writers, set()).problems(parsed_reader, parsed_writer, name_of(parsed_reader)), None
    )


@dataclass(frozen=True, slots=True)
class _Resolution:
    """A comparison of two schemas: their named types, and the pairs of names that were compared."""

    readers: Names
    writers: Names
    compared: set[tuple[str, str]]

    def problems(self, r: Any, w: Any, where: str) -> Iterator[str]:
        """The reasons why `r` cannot read `w`; `where` is the path of the field."""
        r = self.readers.get(r, r) if isinstance(r, str) else r
        w = self.writers.get(w, w) if isinstance(w, str) else w
        if isinstance(w, list):
            for branch in w:
                yield from self.problems(r, branch, where)
            return
        if isinstance(r, list):
            found = [(next(self.problems(branch, w, where), None), branch) for branch in r]
            if all(problem for problem, _ in found):
                alike = [problem for problem, branch in found if kind_of(branch, self.readers) == kind_of(w, {})]
                yield alike[0] if len(alike) == 1 and alike[0] else f"{where} was {name_of(w)} and is {name_of(r)}"
            return
        was, now = kind_of(w, {}), kind_of(r, {})
        if was != now:
            if now not in _PROMOTIONS.get(was, ()):
                yield f"{where} was {name_of(w)} and is {name_of(r)}"
        elif was in ("array", "map"):
            inner = {"array": "items", "map": "values"}[was]
            yield from self.problems(r[inner], w[inner], f"{where}.{inner}")
        elif was in ("record", "error", "enum", "fixed"):
            yield from self._named(was, r, w, where)

    def _named(self, kind: str, r: Any, w: Any, where: str) -> Iterator[str]:
        """The same for types with names, which must agree or be aliases."""
        short = w["name"].rpartition(".")[2]
        if short != r["name"].rpartition(".")[2] and not {short, w["name"]} & set(r.get("aliases", ())):
            yield f"{where} was {w['name']} and is {r['name']}"
        elif kind == "fixed" and r["size"] != w["size"]:
            yield f"{where} had {w['size']} bytes and has {r['size']}"
        elif kind == "enum" and "default" not in r and (lost := set(w["symbols"]) - set(r["symbols"])):
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
