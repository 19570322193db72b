"""operations/acls.py and `kstreams acls`: the whole output for a graph that has every kind of processor."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kstreams_py as ks
from kstreams_py import sinks
from kstreams_py.cli import main as command
from kstreams_py.errors import GraphError, SettingsError
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.operations.acls import CREATE, NOTES, Operation, Role, rights_of
from kstreams_py.processing.commits.opening import committer_of
from kstreams_py.processing.topics import create_own_topics, create_topics, find_topics
from kstreams_py.testing import MemoryCluster

GRAPH = """
import kstreams_py as ks
from kstreams_py import sinks

graph = ks.Graph("shop", errors="dead")
for name in ("orders", "prices", "events", "priced", "joined", "merged", "kept", "often", "once", "applied", "totals"):
    graph.topic(name)
graph.topic("west", cluster="west")
graph.topic("unused")
graph.map("orders", to="priced", id="price")(lambda value: value)
graph.join("orders", "prices", by="order", to="joined", id="pair")(lambda left, right: left)
graph.alts("orders", "prices", to="merged", id="merge")(lambda value: value)
graph.map("orders", to="kept", id="keep", state=ks.State("seen"))(lambda value, state: value)
graph.map("orders", to="often", id="repeat", guarantee="at_least_once")(lambda value: value)
graph.map("orders", to="once", id="risk", guarantee="at_most_once", errors=None)(lambda value: value)
graph.ordered("events", to="applied", id="apply")(lambda value: value)
graph.map("orders", to="west", id="send", persistence="journal", errors=None)(lambda value: value)
graph.sink("priced", to=sinks.SQLite("shop.db", table="rows", columns=["a"]), id="store")(lambda value: (value,))
graph.pipeline("priced", to="totals", id="total", mode="append")(lambda df: df)
"""


def granted(server: str, role: str, *lines: str) -> list[str]:
    """Commands with operations and resources in short: "Read Write --topic a b"."""
    found = []
    for line in lines:
        words, _, rest = line.partition(" --")
        option, *names = rest.split()
        prefixed = names[-1:] == ["prefixed"]
        operations = " ".join(f"--operation {each}" for each in words.split())
        resources = " ".join(f"--{option} {name}" for name in (names[:-1] if prefixed else names)) or f"--{option}"
        found.append(
            f"kafka-acls --bootstrap-server {server} --add --allow-principal User:shop-{role} {operations} {resources}"
            + (" --resource-pattern-type prefixed" if prefixed else "")
        )
    return found


EXPECTED = [
    f"# worker of graph shop: {NOTES[Role.WORKER]}",
    *granted(
        "here:1",
        "worker",
        "Read --group shop.apply shop.keep shop.merge shop.pair shop.price shop.repeat shop.risk shop.send shop.store",
        "Write --transactional-id shop.apply. shop.keep. shop.merge. shop.pair. shop.price. shop.send. shop.store. "
        "prefixed",
        "Read Write Create DescribeConfigs --topic __ks.shop.apply-order.changelog __ks.shop.beginnings "
        "__ks.shop.seen.changelog",
        "Read Write Create Delete Alter DescribeConfigs --topic __ks.shop.merge.journal __ks.shop.send.journal",
        "Read DescribeConfigs --topic __ks.shop.replayed events orders prices",
        "Read Write DescribeConfigs --topic applied dead joined kept merged priced",
        "Write DescribeConfigs --topic often once",
        "Describe DescribeConfigs --topic totals unused",
    ),
    f"# worker of graph shop, on cluster west: {NOTES[Role.WORKER]}",
    *granted(
        "there:2",
        "worker",
        "Write --transactional-id shop.send. prefixed",
        "Read Write Create Alter DescribeConfigs --topic __ks.shop.send.delivered",
        "Read Write DescribeConfigs --topic west",
    ),
    f"# operator of graph shop: {NOTES[Role.OPERATOR]}",
    *granted(
        "here:1",
        "operator",
        "Describe DescribeConfigs --cluster",
        "Read --group shop.apply shop.keep shop.merge shop.pair shop.price shop.repeat shop.risk shop.send shop.store",
        "Describe --transactional-id __ks.totals.runs",
        "Describe --transactional-id shop.apply. shop.keep. shop.merge. shop.pair. shop.price. shop.send. shop.store. "
        "prefixed",
        "Write --transactional-id shop.dead-letters shop.recover",
        "Read DescribeConfigs --topic __consumer_offsets __ks.totals.runs __transaction_state applied dead kept once "
        "orders prices totals unused",
        "Read Create DescribeConfigs --topic __ks.shop.apply-order.changelog __ks.shop.seen.changelog",
        "Read Write Create DescribeConfigs --topic __ks.shop.beginnings __ks.shop.replayed",
        "Read Write Create Alter DescribeConfigs --topic __ks.shop.merge.journal __ks.shop.send.journal",
        "Read Write DescribeConfigs --topic events joined merged often priced",
    ),
    f"# operator of graph shop, on cluster west: {NOTES[Role.OPERATOR]}",
    *granted(
        "there:2",
        "operator",
        "Describe DescribeConfigs --cluster",
        "Describe --transactional-id shop.send. prefixed",
        "Read Write Create Alter DescribeConfigs --topic __ks.shop.send.delivered",
        "Read DescribeConfigs --topic __transaction_state west",
    ),
    "# reader of graph shop: a reader that is a member of a group needs READ on that group, too",
    *granted(
        "here:1", "reader", "Read DescribeConfigs --topic applied dead joined kept merged often once priced totals"
    ),
    "# reader of graph shop, on cluster west: a reader that is a member of a group needs READ on that group, too",
    *granted("there:2", "reader", "Read DescribeConfigs --topic west"),
    f"# pipeline of graph shop: {NOTES[Role.PIPELINE]}",
    *granted(
        "here:1",
        "pipeline",
        "Describe --group shop.price",
        "Read --group shop.total",
        "Write --transactional-id __ks.totals.runs",
        "Read Write Create DescribeConfigs --topic __ks.totals.runs",
        "Describe DescribeConfigs --topic orders",
        "Read DescribeConfigs --topic priced",
        "Read Write Delete DescribeConfigs --topic totals",
    ),
]


def run(tmp_path: Path, *arguments: str, text: str = GRAPH) -> str:
    file, config = tmp_path / "shop.py", tmp_path / "settings.toml"
    file.write_text(text)
    config.write_text('bootstrap_servers = "here:1"\n[clusters.west]\nbootstrap_servers = "there:2"\n')
    done = CliRunner().invoke(command.app, ["acls", str(file), "--config", str(config), *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_commands_of_a_graph_with_every_kind_grant_each_role_what_it_needs(tmp_path: Path) -> None:
    assert run(tmp_path).splitlines() == EXPECTED


def test_one_role_is_printed_for_a_principal_of_ones_own_quoted_for_a_shell(tmp_path: Path) -> None:
    lines = [line for line in EXPECTED if "reader" in line.split(":")[0] or "shop-reader" in line]
    quoted = [line.replace("User:shop-reader", "'User:CN=Ann, O=Shop'") for line in lines]
    assert run(tmp_path, "--role", "reader", "--principal", "User:CN=Ann, O=Shop").splitlines() == quoted


def test_rights_as_json_are_an_object_a_line(tmp_path: Path) -> None:
    found = [json.loads(line) for line in run(tmp_path, "--role", "pipeline", "--json").splitlines()]
    whose = {"role": "pipeline", "principal": "User:shop-pipeline", "cluster": ""}
    assert found[0] == {
        **whose, "resource": "group", "name": "shop.price", "pattern": "literal", "operations": ["DESCRIBE"],
    }  # fmt: skip
    assert found[2] == {
        **whose, "resource": "transactional-id", "name": "__ks.totals.runs", "pattern": "literal",
        "operations": ["WRITE"],
    }  # fmt: skip
    assert len(found) == 7


def test_slots_have_ids_of_their_own_and_commands_sign_in(tmp_path: Path) -> None:
    found = run(tmp_path, "--role", "worker", "--slots", "0,2", "--command-config", "an admin.properties")
    ids = [f"shop.{each}.{slot}" for each in ("apply", "keep", "merge", "pair", "price", "store") for slot in (0, 2)]
    here = sorted([*ids, "shop.send.0.journal", "shop.send.2.journal"])
    of_ids = {EXPECTED[2]: f"Write --transactional-id {' '.join(here)}"}
    of_ids[EXPECTED[10]] = "Write --transactional-id shop.send.0 shop.send.2"
    lines = [
        granted(line.split()[2], "worker", of_ids[line])[0] if line in of_ids else line
        for line in EXPECTED
        if "worker of" in line or "shop-worker" in line
    ]
    assert found.splitlines() == [
        line.replace(" --add", " --command-config 'an admin.properties' --add") for line in lines
    ]
    with pytest.raises(SettingsError, match=r"^--command-config is for commands, and --json prints none: leave one"):
        run(tmp_path, "--json", "--command-config", "admin.properties")


@pytest.mark.parametrize("principal", ["alice", "User:", ":alice", ""])
def test_principal_without_a_type_or_a_name_is_refused(tmp_path: Path, principal: str) -> None:
    with pytest.raises(SettingsError, match=r"--principal .* such as User:alice"):
        run(tmp_path, "--principal", principal)


def test_cluster_without_an_address_is_refused_with_the_setting_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"clusters has no 'east'.*west"):
        run(tmp_path, text=GRAPH.replace('cluster="west"', 'cluster="east"'))


def test_role_that_a_graph_has_no_work_for_needs_no_right(tmp_path: Path) -> None:
    text = "\n".join(line for line in GRAPH.splitlines() if "pipeline" not in line)
    found = run(tmp_path, "--role", "pipeline", text=text)
    assert found == "# graph shop has no work for a pipeline: it needs no rights\n"
    assert "pipeline" not in run(tmp_path, text=text)


def test_operator_decides_on_objects_whose_refused_events_are_no_dead_letters() -> None:
    graph = ks.Graph("g")
    graph.ordered(graph.topic("a"), to=graph.topic("b"), id="apply")(lambda value: value)
    written = {each.name for each in rights_of(graph, Role.OPERATOR) if Operation.WRITE in each.operations}
    assert written == {"a", "__ks.g.beginnings", "__ks.g.replayed", "g.dead-letters", "g.recover"}


def test_graph_of_pipelines_alone_has_no_workers() -> None:
    graph = ks.Graph("tables")
    graph.pipeline(graph.topic("rows"), to=graph.topic("totals"), id="total", mode="append")(lambda df: df)
    assert rights_of(graph, Role.WORKER) == []


def test_topics_that_a_worker_may_create_are_those_that_the_engine_creates() -> None:
    scope: dict[str, Any] = {}
    exec(GRAPH.replace(', cluster="west"', ""), scope)
    graph, cluster = scope["graph"], MemoryCluster()
    create_topics(graph, cluster)
    created = create_own_topics(graph, cluster, find_topics(graph, cluster))
    assert sorted(created) == [each.name for each in rights_of(graph, Role.WORKER) if CREATE in each.operations]


def test_rights_on_transactional_ids_are_printed_where_the_engine_has_transactions() -> None:
    """The rule judges by the guarantee, the engine by the class that commits."""
    found = 0
    for guarantee, persistence, offsets in product(Guarantee, ("transaction", "journal"), (False, True)):
        graph = ks.Graph("g", guarantee=guarantee)
        try:
            graph.map(graph.topic("a"), to=graph.topic("b"), id="p", persistence=persistence)(lambda value: value)
            if offsets:
                table = sinks.SQLite("x.db", table="rows", columns=["a"], evidence="offsets")
                graph.sink("a", to=table, id="q")(lambda value: (value,))
        except GraphError:
            continue
        found += 1
        ids = {each.name for each in rights_of(graph, Role.WORKER) if each.resource == "transactional-id"}
        assert ids == {f"g.{each.id}." for each in graph.processors if committer_of(each).transactional}
    assert found == 6
