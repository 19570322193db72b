"""The entries of the bench, in the order of a round, and the targets of the results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from bench.measure import Entry
from bench.processes import BEFORE
from bench.report import Target

OURS, HAND, QUIX, STREAMS = "kstreams_py", "by hand", "quixstreams", "Kafka Streams"
NO_HEADER, AT_LEAST_ONCE, WITH_HEADER = f"{OURS}, no header", f"{OURS}, at least once", f"{HAND}, with header"
NO_JOURNAL = f"{OURS}, no journal"

PASS, STEP, BATCH, KILO, AVRO, JOIN, ALTS = "pass-through", "step", "batch", "1 kB", "avro", "join", "alts"
JOURNAL, UNITS = "journal", "journal, one by one"
COUNT, DISK, ORDERED, RESTORE = "count", "count on disk", "ordered", "restore"
WAIT, ONE, SEVERAL = "wait", f"{OURS}, one at a time", f"{OURS}, 64 at once"
LATENCY, MEMORY, CHAOS = "latency", "memory", "chaos"

# entries to compare run one after the other, so that other load on the machine affects them alike
ENTRIES: Final = (
    Entry(PASS, WITH_HEADER, HAND),
    Entry(PASS, OURS, OURS),
    Entry(PASS, AT_LEAST_ONCE, OURS, guarantee="at_least_once"),
    Entry(BATCH, OURS, OURS, task="batch"),
    Entry(STEP, OURS, OURS, task="step"),
    Entry(PASS, STREAMS, STREAMS),
    Entry(PASS, NO_HEADER, OURS, header=False),
    Entry(PASS, HAND, HAND, header=False),
    Entry(PASS, QUIX, QUIX),
    Entry(KILO, WITH_HEADER, HAND, load="1 kB"),
    Entry(KILO, OURS, OURS, load="1 kB"),
    Entry(KILO, STREAMS, STREAMS, load="1 kB"),
    Entry(KILO, QUIX, QUIX, load="1 kB"),
    Entry(AVRO, WITH_HEADER, HAND, load="avro", task="avro"),
    Entry(AVRO, OURS, OURS, load="avro", task="avro"),
    Entry(AVRO, QUIX, QUIX, load="avro, bare", task="avro"),
    Entry(JOIN, OURS, OURS, task="join", inputs=2),
    Entry(ALTS, OURS, OURS, task="alts", inputs=2),
    Entry(ALTS, STREAMS, STREAMS, task="alts", inputs=2),
    Entry(JOURNAL, NO_JOURNAL, OURS),
    Entry(JOURNAL, OURS, OURS, journal=1_000),
    Entry(UNITS, HAND, HAND, journal=1),
    Entry(UNITS, OURS, OURS, journal=1),
    Entry(COUNT, OURS, OURS, load="keyed", task=COUNT),
    Entry(COUNT, STREAMS, STREAMS, load="keyed", task=COUNT),
    Entry(DISK, OURS, OURS, load="keyed", task=DISK),
    Entry(DISK, STREAMS, STREAMS, load="keyed", task=DISK),
    Entry(DISK, QUIX, QUIX, load="keyed", task=DISK),
    Entry(ORDERED, OURS, OURS, load="events", task=ORDERED),
    Entry(WAIT, ONE, OURS, task="wait"),
    Entry(WAIT, f"{SEVERAL}, order key", OURS, task="wait", concurrency=64, order="key"),
    Entry(WAIT, f"{SEVERAL}, order none", OURS, task="wait", concurrency=64, order="none"),
    Entry(WAIT, f"{SEVERAL}, in threads", OURS, task="wait in threads", concurrency=64, order="key"),
    Entry(WAIT, f"{SEVERAL}, at least once", OURS, task="wait", concurrency=64, order="key", guarantee="at_least_once"),
)

LATENCY_ENTRIES: Final = (Entry(LATENCY, OURS, OURS), Entry(LATENCY, STREAMS, STREAMS))
RESTORE_ENTRY: Final = Entry(RESTORE, OURS, OURS, load="objects", task=ORDERED)
MEMORY_ENTRY: Final = Entry(MEMORY, OURS, OURS)
CHAOS_ENTRIES: Final = tuple(Entry(CHAOS, name, name) for name in (OURS, HAND, STREAMS, QUIX))

STEPS: Final = (PASS, STEP, BATCH, KILO, AVRO, JOIN, ALTS, COUNT, DISK)
WORKLOADS: Final = (*STEPS, ORDERED, RESTORE, JOURNAL, UNITS, WAIT, LATENCY, MEMORY, CHAOS)

RATE: Final = "records/s"

TARGETS: Final = (
    Target("exactly-once pass-through", f"{PASS}: {OURS}", RATE, at_least=1.1, of=f"{PASS}: {STREAMS}"),
    Target("exactly-once pass-through", f"{PASS}: {OURS}", RATE, at_least=4, of=f"{PASS}: {QUIX}"),
    Target("exactly-once pass-through", f"{PASS}: {OURS}", RATE, at_least=0.75, of=f"{PASS}: {WITH_HEADER}"),
    Target("batch=True", f"{BATCH}: {OURS}", RATE, at_least=0.85, of=f"{PASS}: {WITH_HEADER}"),
    Target("header switched off", f"{PASS}: {NO_HEADER}", RATE, at_least=0.75, of=f"{PASS}: {HAND}"),
    Target("1 kB values", f"{KILO}: {OURS}", RATE, at_least=1.5, of=f"{KILO}: {STREAMS}"),
    Target("exactly-once beside at-least-once", f"{PASS}: {OURS}", RATE, at_least=0.95, of=f"{PASS}: {AT_LEAST_ONCE}"),
    Target("Avro in and out", f"{AVRO}: {OURS}", RATE, at_least=0.8, of=f"{AVRO}: {WITH_HEADER}"),
    Target("Avro in and out", f"{AVRO}: {OURS}", RATE, at_least=2, of=f"{AVRO}: {QUIX}"),
    Target("journal, batches of 1,000 (records/s)", f"{JOURNAL}: {OURS}", RATE, at_least=50_000),
    Target("journal, one by one", f"{UNITS}: {OURS}", RATE, at_least=0.9, of=f"{UNITS}: {HAND}"),
    Target("counting, in memory", f"{COUNT}: {OURS}", RATE, at_least=1, of=f"{COUNT}: {STREAMS}"),
    Target("counting, on disk", f"{DISK}: {OURS}", RATE, at_least=1, of=f"{DISK}: {STREAMS}"),
    Target("counting, in memory", f"{COUNT}: {OURS}", RATE, at_least=3, of=f"{DISK}: {QUIX}"),
    Target("counting, on disk", f"{DISK}: {OURS}", RATE, at_least=3, of=f"{DISK}: {QUIX}"),
    Target("ordered consumer, 100,000 objects (events/s)", f"{ORDERED}: {OURS}", RATE, at_least=40_000),
    Target("restore of 1 million ids (s)", f"{RESTORE}: {OURS}", "restore s", at_most=20),
    Target("calls that overlap", f"{WAIT}: {SEVERAL}, order key", RATE, at_least=40, of=f"{WAIT}: {ONE}"),
    Target("calls that overlap", f"{WAIT}: {SEVERAL}, order none", RATE, at_least=40, of=f"{WAIT}: {ONE}"),
    Target("calls in threads", f"{WAIT}: {SEVERAL}, in threads", RATE, at_least=40, of=f"{WAIT}: {ONE}"),
    Target("latency, median (ms)", f"{LATENCY}: {OURS}", "median ms", at_most=25),
    Target("latency, p99 (ms)", f"{LATENCY}: {OURS}", "p99 ms", at_most=80),
    Target("latency, median", f"{LATENCY}: {OURS}", "median ms", at_most=1, of=f"{LATENCY}: {STREAMS}"),
    Target("latency, p99", f"{LATENCY}: {OURS}", "p99 ms", at_most=1, of=f"{LATENCY}: {STREAMS}"),
    Target("memory, growth from 0.2 to 2 million records (MB)", f"{MEMORY}: {OURS}", "growth MB", at_most=50),
    Target("chaos, longest silence of a partition (s)", f"{CHAOS}: {OURS}", "longest silence s", at_most=1.5),
    Target("chaos, lost (records)", f"{CHAOS}: {OURS}", "lost", at_most=0),
    Target("chaos, duplicated (records)", f"{CHAOS}: {OURS}", "duplicated", at_most=0),
    Target("chaos, out of order (records)", f"{CHAOS}: {OURS}", "out of order", at_most=0),
)

SAME: Final = 0.97
"""The least ratio to the same figure of another commit, measured side by side; less counts as slower."""


def beside_before(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the rows of kstreams_py, each followed by that of the other checkout."""
    return [
        each
        for entry in entries
        if entry.program == OURS
        for each in (entry, replace(entry, name=f"{entry.name}, {BEFORE}", program=BEFORE))
    ]


def _as_before(row: str, measure: str, *, more_is_better: bool = True) -> Target:
    name, before = f"as before: {row}, {measure}", f"{row}, {BEFORE}"
    if more_is_better:
        return Target(name, row, measure, at_least=SAME, of=before)
    return Target(name, row, measure, at_most=round(1 / SAME, 2), of=before)


TARGETS_BEFORE: Final = (
    *(_as_before(row, RATE) for row in (f"{PASS}: {OURS}", f"{PASS}: {AT_LEAST_ONCE}", f"{BATCH}: {OURS}")),
    *(_as_before(f"{LATENCY}: {OURS}", measure, more_is_better=False) for measure in ("median ms", "p99 ms")),
    _as_before(f"{CHAOS}: {OURS}", "longest silence s", more_is_better=False),
)
