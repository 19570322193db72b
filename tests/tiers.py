"""The parts of the long tier: of the tests marked `long`, those of these files.

The quick tier is what no marker leaves out; tests/README.md says what belongs to which tier.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Final

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "jobs": (
        "*/test_job*",
        "*/test_cluster_log*",
        "*/test_clusters_of_peers*",
        "*/test_links*",
        "*/test_memberships*",
        "*/test_messengers*",
        "*/test_mutations_of_clusters*",
        "*/test_peers*",
        "*/test_schedulers*",
        "unit/test_acking*",
        "unit/test_origins*",
        "unit/test_channels*",
        "contract/test_source*",
        "simulation/test_mutations_of_jobs*",
        "system/test_demo_channels*",
        "system/test_demo_jobs*",
    ),
    "journal": ("simulation/test_grid*", "*/test_journal*", "system/test_grid*", "*/test_two_clusters*"),
    "spark": (
        "contract/test_pipeline*",
        "system/test_spark*",
        "system/test_pipeline*",
        "system/test_streaming*",
        "system/test_cuts*",
        "*/test_sources*",
        "system/test_evolution*",
        "unit/test_archiving*",
    ),
    "sinks": ("*/test_sinks*", "system/test_targets*", "system/test_database_away*"),
    "ordering": ("*/test_order*", "system/test_demo_ordering*"),
    "state": ("*/test_state*",),
    "operations": (
        "fuzz/*",
        "contract/test_registry*",
        "*/test_doctor*",
        "system/test_audit*",
        "system/test_dead_letters*",
        "system/test_recover*",
        "system/test_send_and_tail*",
        "system/test_transactions*",
        "system/three_brokers/test_copier*",
    ),
    "running": (
        "system/test_bad_input*",
        "system/test_bench*",
        "system/test_broker*",
        "system/test_de[mv]*",
        "system/test_diagnosis*",
        "system/test_docs*",
        "*/test_frozen_broker*",
        "system/test_membership*",
        "system/test_new*",
        "*/test_outages*",
        "system/test_pytest_plugin*",
        "system/test_readme*",
        "system/test_rights*",
        "system/test_running*",
        "system/test_slots*",
        "system/test_start*",
        "system/test_terminal*",
        "system/test_tracing*",
        "system/test_tutorial*",
        "system/test_watching*",
        "system/test_wheel*",
    ),
    "kafka": (
        "mock/*",
        "contract/test_cluster*",
        "contract/test_signing_in*",
        "system/behind_proxy/*",
        "system/own_broker/*",
    ),
    "processing": ("*",),
}
"""Patterns of paths below tests/; the first part that has a file counts."""


def part_of(path: str) -> str:
    """The part of the long tier that a test file belongs to; `path` is relative to the repository."""
    name = path.removeprefix("tests/")
    return next(part for part, patterns in PARTS.items() if any(fnmatch(name, each) for each in patterns))
