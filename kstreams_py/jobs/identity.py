"""The three kinds of ids of a job. They have distinct types and never stand for one another.

- SegmentId: one reading of one input of a source, 128 random bits. An input that is read again gets another id.
- Pattern: one copy of a segment, sent to one task, 64 random bits.
- Origin: 16 bytes that stay the same however often an input is read. An effect that is stored beside its origin is
  recognized when it is repeated, as long as functions are deterministic.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NewType

SegmentId = NewType("SegmentId", bytes)
Pattern = NewType("Pattern", int)
Origin = NewType("Origin", bytes)

Given = NewType("Given", bytes)
"""Identifies an input, the same each time that it is read: 8 bytes for its source, and its key there (`identify`)."""

NUMBER: Final = b"\0"
"""The byte between the source and a key that is a number of 8 bytes."""

OTHER: Final = b"\1"
"""The byte between the source and any other key."""

Path = NewType("Path", bytes)
"""How a segment was made from its input: for each step, the processor and the number of the result."""

Entropy = Callable[[int], bytes]
"""Returns this many random bytes, such as os.urandom."""

ID_BYTES: Final = 16

NUMBERS: Final = 1 << 64
"""Numbers below this fit into 8 bytes."""

ROOT: Final = Path(b"")
"""The path of an input."""

NAME_BYTES: Final = 8
"""How many bytes stand for a processor in a path, or for a source."""

FIRST: Final = (0).to_bytes(4, "big")
"""The number of the first result of a step, in the bytes of a path."""

STEP_BYTES: Final = NAME_BYTES + len(FIRST)
"""Bytes of one step in a path."""

NUMBER_BYTES: Final = 8
"""Bytes of a key that is a number."""


def begin_alike(data: bytes, width: int, start: int, end: int) -> bool:
    """Returns whether all parts of data have the same bytes from `start` to `end`. `width`: the bytes of a part."""
    count = len(data) // width
    return all(data[at::width].count(data[at]) == count for at in range(start, end)) if count else True


def replace_begin(begin: bytes, data: bytes, width: int, start: int = 0) -> list[Any]:
    """Returns each part of data with `begin` in the place of its first `start` bytes.

    - `width`: the bytes of a part.
    """
    # measured: a slice for each part takes three times as long
    count, made_width = len(data) // width, len(begin) + width - start
    made = bytearray(count * made_width)
    for at, byte in enumerate(begin):
        made[at::made_width] = bytes((byte,)) * count
    for at in range(start, width):
        made[len(begin) + at - start :: made_width] = data[at::width]
    # struct.unpack would keep a hundred compiled formats, each as large as its parts: 32 MB for thousands of parts
    return [*struct.Struct(f"{made_width}s" * count).unpack(made)]


def new_ids(entropy: Entropy, count: int) -> list[SegmentId]:
    """Returns new ids."""
    data: Any = entropy(count * ID_BYTES)  # calling SegmentId for each would take as long as the slice
    return [data[start : start + ID_BYTES] for start in range(0, len(data), ID_BYTES)]


def new_patterns(entropy: Entropy, count: int) -> list[Pattern]:
    """Returns new patterns, none of them 0: a pattern of 0 would not change the XOR of the acknowledgements."""
    drawn: list[Any] = array("Q", entropy(count * 8)).tolist()
    return drawn if all(drawn) else [Pattern(pattern or 1) for pattern in drawn]


def name_source(source: str, identity: str) -> bytes:
    """Returns the bytes that stand for a source in its inputs.

    - `source`: its name, with the graph's name.
    - `identity`: distinguishes it from others that had its name: see SourceConnection.
    """
    return blake2b(f"{source}\0{identity}".encode(), digest_size=NAME_BYTES, person=b"ks-source").digest()


def identify(source: bytes, keys: Sequence[int | bytes]) -> list[Given]:
    """Returns the identity of each input, by its key. `source`: as `name_source` returns it."""
    number, other = source + NUMBER, source + OTHER
    if {*map(type, keys)} == {int}:
        try:
            return replace_begin(number, struct.pack(f">{len(keys)}Q", *keys), NUMBER_BYTES)
        except struct.error:  # a negative number, or a large one
            pass
    found: list[Any] = [
        number + key.to_bytes(NUMBER_BYTES, "big")
        if type(key) is int and 0 <= key < NUMBERS
        else other + (key if isinstance(key, bytes) else repr(key).encode())
        for key in keys
    ]
    return found


def name_in_path(processor: str) -> bytes:
    """Returns the part of a path that stands for a processor, by its id."""
    return blake2b(processor.encode(), digest_size=NAME_BYTES, person=b"ks-task").digest()


def extend_all(paths: Sequence[Path], name: bytes) -> list[Path]:
    """Returns the path of the first result of each step of a processor."""
    suffix: Any = name + FIRST
    if are_one(paths):
        return [Path(paths[0] + suffix)] * len(paths)
    return [path + suffix for path in paths]


def are_one(paths: Sequence[Path]) -> bool:
    """Returns whether all paths are the same, as they are in a chain of processors; False for none."""
    return bool(paths) and paths.count(paths[0]) == len(paths)


def extend(path: Path, name: bytes, number: int) -> Path:
    """Returns the path of a result. `number`: how many results of the same step come before it."""
    return Path(path + name + number.to_bytes(len(FIRST), "big"))


def cut_path(path: Path, names: frozenset[bytes]) -> Path | None:
    """Returns the path up to its last step of one of these processors; None if it has none."""
    for start in range(len(path) - STEP_BYTES, -1, -STEP_BYTES):
        if path[start : start + NAME_BYTES] in names:
            return Path(path[: start + STEP_BYTES])
    return None


def origins_of(given: Sequence[Given], paths: Sequence[Path]) -> Iterator[Origin]:
    """Returns the origins of segments, each made from its input and the steps that led to it.

    If the key of the input is a number, the origin is a hash of the source and the steps, then the number: a target
    that keeps rows in the order of their origins appends them, which makes SQLite 1.7 times as fast (measured). Other
    origins are a hash of everything. The hashed encoding is injective: each step has the same length, and the total
    length of the steps comes last.
    """
    if are_one(paths) and _is_first(paths[0]) and {*map(len, given)} == {NAME_BYTES + 1 + NUMBER_BYTES}:
        data, start = b"".join(given), NAME_BYTES + 1
        if data[NAME_BYTES] == NUMBER[0] and begin_alike(data, len(given[0]), 0, start):
            begin = _begin_of(data[:NAME_BYTES], paths[0])
            return iter(replace_begin(begin, data, len(given[0]), start))
    return _origins_of_any(given, paths)


def _origins_of_any(given: Sequence[Given], paths: Sequence[Path]) -> Iterator[Origin]:
    ends: dict[Path, tuple[bytes, bool]] = {}
    begins: dict[tuple[bytes, Path], bytes] = {}
    found: Any
    for each, path in zip(given, paths, strict=True):
        if (known := ends.get(path)) is None:
            known = ends[path] = _end_of(path), _is_first(path)
        end, is_first = known
        if is_first and each[NAME_BYTES] == NUMBER[0]:
            key = each[:NAME_BYTES], path
            if (begin := begins.get(key)) is None:
                begin = begins[key] = _begin_of(*key)
            found = begin + each[NAME_BYTES + 1 :]
        else:
            found = blake2b(each + end, digest_size=16, person=b"ks-origin").digest()
        yield found


def _end_of(path: Path) -> bytes:
    return path + len(path).to_bytes(4, "big")


def _begin_of(source: bytes, path: Path) -> bytes:
    # 8 bytes are enough for the paths of first results: there are only as many as processors
    return blake2b(source + _end_of(path), digest_size=8, person=b"ks-origin").digest()


def _is_first(path: Path) -> bool:
    """Returns whether each step of a path is the first result of its processor."""
    return all(path[at + NAME_BYTES : at + STEP_BYTES] == FIRST for at in range(0, len(path), STEP_BYTES))
