"""`kstreams demo ordering` as a user runs it, on each store: every line of its table and of its report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.servers import start_redis
from kstreams_py.sinks.redis import open_client
from tests.system.command import read_checks, run_demo

pytestmark = pytest.mark.long

FLIGHTS = 800
KILLS = 2


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of a store; None for a file."""
    if request.param == "sqlite":
        yield None
        return
    with closing(start_redis("--appendfsync", "always")) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        yield url
        with closing(open_client(url)) as client:
            assert client.dbsize() == 0, "the keys of the run are deleted"


def test_demo_of_ordering_with_kills_keeps_order_and_shows_what_overtakes_without_it(
    store: str | None, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    stored = ["--store", store] if store else []
    done, log = run_demo("ordering", "--flights", FLIGHTS, "--kills", KILLS, *stored, output=output)
    assert read_checks(done.out) == [
        ("ok", "aircraft", "632", "632"),
        ("ok", "changes stored", "1,600", "1,600"),
        ("ok", "aircraft with another state in the store", "0", "0"),
        *(
            ("ok", f"{group}: {what}", expected, expected)
            for group in ("by the rule", "airline", "tower", "workshop")
            for what, expected in (
                ("events applied", "3,160"),
                ("aircraft with another order of events", "0"),
                ("aircraft with another state", "0"),
                ("events refused, or waiting at the end", "0"),
            )
        ),
        ("ok", "aircraft on whose state two groups disagree", "0", "0"),
        ("ok", "events sent without ordering", "3,160", "3,160"),
        ("ok", "workers that did not stop", "0", "0"),
    ]
    assert done.out.count("SIGKILL") == 2 * KILLS, "of the workers, and of the processes of the groups"
    assert done.out.index("the workers have joined: writing events") < done.out.index("SIGKILL")
    assert len(re.findall(r"start \d+ under this name", log)) == 3 + KILLS
    report = (output / "report.md").read_text(encoding="utf-8")
    late = re.search(r"the same events: (\d+) of them came after a later one, of (\d+) aircraft", report)
    assert late is not None
    assert int(late[1]) >= int(late[2]) >= 1, "without event ordering, events overtake each other"
    assert f"{KILLS} times one of them was killed" in report
    assert f"{KILLS} times a process of the consumer groups was killed" in report
    ended = "632 of 632 aircraft have the state of the file, after 3,160 events"
    assert re.findall(r"With event ordering, (\w+): (.*?), each", report) == [
        (group, ended) for group in ("airline", "tower", "workshop")
    ]
    assert {path.name for path in output.iterdir()} == {"report.md", "run.log", *([] if store else ["events.db"])}
