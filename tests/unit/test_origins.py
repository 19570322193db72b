"""Origins: the same for each life of an input, and different for all that differs."""

from __future__ import annotations

import tracemalloc
from itertools import product

from kstreams_py.jobs.identity import (
    ROOT,
    Origin,
    Path,
    cut_path,
    extend,
    extend_all,
    identify,
    name_in_path,
    name_source,
    origins_of,
)

PARSE, ENRICH = name_in_path("parse"), name_in_path("enrich")


def origin(source: str, key: int | bytes, path: Path) -> Origin:
    (found,) = origins_of(identify(name_source(source, ""), [key]), [path])
    return found


def test_origin_is_the_same_each_time_and_differs_by_source_key_and_each_step() -> None:
    paths = [ROOT, extend(ROOT, PARSE, 0), extend(ROOT, PARSE, 1), extend(ROOT, ENRICH, 0)]
    paths += [extend(paths[1], ENRICH, 0), extend(paths[3], PARSE, 0)]
    keys: list[int | bytes] = [0, 1, (1 << 64) - 1, 1 << 64, -1, b"", b"1", b"\0" * 8, (5).to_bytes(8, "big"), 5]
    found = [origin(*each) for each in product(("g.rows", "g.row", "g.other"), keys, paths)]
    assert len(set(found)) == len(found) == 3 * 10 * 6
    assert {len(each) for each in found} == {16}
    assert found == [origin(*each) for each in product(("g.rows", "g.row", "g.other"), keys, paths)]


def test_batches_of_many_sizes_leave_nothing_in_memory() -> None:
    tracemalloc.start()
    try:
        for count in range(1_000, 1_050):
            identify(PARSE, range(count))
        assert tracemalloc.get_traced_memory()[0] < 100_000, "bytes"
    finally:
        tracemalloc.stop()


def test_origins_of_numbers_are_in_their_order() -> None:
    numbers = [0, 1, 255, 256, 1 << 40]
    given = identify(name_source("g.rows", ""), numbers)
    found = [*origins_of(given, [Path(b"")] * len(numbers))]
    assert found == sorted(found)


def test_path_is_cut_after_the_last_step_of_a_processor() -> None:
    parsed = extend(ROOT, PARSE, 2)
    (enriched,) = extend_all([parsed], ENRICH)
    assert cut_path(enriched, frozenset({PARSE})) == parsed
    assert cut_path(enriched, frozenset({ENRICH, PARSE})) == enriched
    assert cut_path(enriched, frozenset({name_in_path("other")})) is None
