"""spark/cuts.py: the value and its text, what is read between two cuts, which processors can be cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import SettingsError, UserMistake
from kstreams_py.graph.hashes import hash_prefix, pack_offset
from kstreams_py.graph.topology import Graph
from kstreams_py.sinks import SQLite
from kstreams_py.spark import Cut, read_cut, write_cut
from kstreams_py.spark.cuts import FORMAT, CutInput, CutTopic, CutWriter, Span, choose_topics, choose_writers
from kstreams_py.spark.pipelines.places import describe_cut
from tests.tables import each_case


def make_cut(*spans: Span, topic_id: str = "t") -> Cut:
    writers = (
        CutWriter("p", ("out", "dead"), (CutInput("in", "i", (7, 0)),)),
        CutWriter("q", ("dead",), (CutInput("in", "i", (3, 4)),)),
    )
    return Cut("g", {"out": CutTopic(topic_id, spans), "dead": CutTopic("d", (Span(0, 1, 2),))}, writers)


def test_limits_of_a_topic_are_the_committed_offsets_of_its_writers_by_task() -> None:
    cut = make_cut(Span(0, 1, 2))
    of_p = {hash_prefix("g.p", "in", "i", number): pack_offset(at) for number, at in enumerate((7, 0))}
    of_q = {hash_prefix("g.q", "in", "i", number): pack_offset(at) for number, at in enumerate((3, 4))}
    assert (cut.limits("out"), cut.limits("dead")) == (of_p, of_p | of_q)


def test_cut_is_the_same_after_it_was_a_file(tmp_path: Path) -> None:
    cut, path = make_cut(Span(0, 1, 2), Span(3, 3, 3)), tmp_path / "cut.json"
    write_cut(make_cut(), path)
    write_cut(cut, str(path))
    assert (read_cut(path), sorted(tmp_path.iterdir())) == (cut, [path])


def test_moment_of_a_cut_is_in_its_text_and_makes_no_other_cut() -> None:
    cut = make_cut(Span(0, 1, 2))
    later = replace(cut, made=1700000000.5)
    assert later == cut
    assert Cut.decode(later.encode(), "c.json").made == 1700000000.5
    of_older_release = {name: value for name, value in json.loads(later.encode()).items() if name != "made"}
    assert Cut.decode(json.dumps(of_older_release), "c.json").made is None


@each_case("text", ["junk", "[1]", '{"stream": 1}', '{"topics": 1}', '{"topics": {"a": {}}}', "[" * 100_000])
def test_text_of_a_run_that_somebody_else_wrote_is_described_as_not_known(text: str) -> None:
    (line,) = describe_cut(text)
    assert line.startswith("not known, as somebody else has written it: ")


def test_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    missing, binary = tmp_path / "none" / "cut.json", tmp_path / "binary"
    binary.write_bytes(bytes([255]))
    remedy = "make one with `kstreams cut`"
    for path, why in (
        (missing, f"{missing}: no cut can be read: No such file or directory: {remedy}"),
        (binary, f"{binary}: not a cut: it is not text: {remedy}"),
    ):
        with pytest.raises(UserMistake) as caught:
            read_cut(path)
        assert str(caught.value) == why
    with pytest.raises(UserMistake) as caught:
        write_cut(make_cut(), missing)
    assert str(caught.value) == f"{missing}: the cut cannot be written: No such file or directory"


NO_NUMBER = {"topic": "in", "topic_id": "", "offsets": ["7"]}
BELOW_ZERO = {"start": 0, "settled": -1, "end": 0}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "kstreams_py positions 1"}, f"it has no {FORMAT!r} as its format"),
        ({"topics": None}, "'NoneType' object has no attribute 'items'"),
        ({"topics": {"out": {"topic_id": "t"}}}, "'partitions' is missing"),
        ({"topics": {"out": {"topic_id": "t", "partitions": [BELOW_ZERO]}}}, "-1 is not an offset"),
        ({"writers": [{"processor": "p", "outputs": [], "inputs": [NO_NUMBER]}]}, "'7' is not an offset"),
    ],
)
def test_text_that_is_no_cut_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    content = json.loads(make_cut(Span(0, 1, 2)).encode())
    with pytest.raises(UserMistake) as caught:
        Cut.decode(json.dumps(content | change), "c.json")
    assert str(caught.value) == f"c.json: not a cut: {why}: make one with `kstreams cut`"


def test_text_that_is_no_object_is_refused() -> None:
    for text in ("[]", "{"):
        with pytest.raises(UserMistake, match=r"^c\.json: not a cut: "):
            Cut.decode(text, "c.json")


def test_range_between_two_cuts_is_from_what_was_settled_or_from_the_start() -> None:
    old, new = make_cut(Span(0, 5, 8)), make_cut(Span(2, 9, 12), added := Span(1, 3, 4))
    assert (new.spans("out", None), new.spans("out", old)) == ((Span(2, 9, 12), added), (Span(5, 9, 12), added))


UNFINISHED = "topic 'out': the cut to start from was not finished before the other one was begun"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (make_cut(Span(0, 5, 8)), make_cut(Span(0, 7, 9)), UNFINISHED),
        (make_cut(Span(0, 5, 8), Span(0, 0, 0)), make_cut(Span(0, 9, 9)), UNFINISHED),
        (make_cut(Span(0, 5, 8), topic_id="x"), make_cut(Span(0, 9, 9)), "topic 'out' was deleted and created again "),
        (Cut("g", {}, ()), make_cut(Span(0, 9, 9)), "topic 'out' is not in the cut of graph 'g': it has "),
    ],
)
def test_cut_that_does_not_follow_another_is_refused(old: Cut, new: Cut, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        new.spans("out", old)
    assert str(caught.value).startswith(why)


def test_topic_that_a_cut_does_not_have_is_named_with_the_most_similar_one() -> None:
    with pytest.raises(SettingsError) as caught:
        make_cut(Span(0, 1, 2)).topic("uot")
    assert str(caught.value) == "topic 'uot' is not in the cut of graph 'g': did you mean out?"


# Processors.


def make_graph(**options: Any) -> Graph:
    graph = Graph("g", errors="dead")
    for topic in ("in", "mid", "out"):
        graph.topic(topic)
    graph.map("in", to="mid", id="first")(bytes)
    graph.map("mid", to="out", id="second", **options)(bytes)
    return graph


def test_topics_are_by_default_all_that_are_on_the_own_cluster() -> None:
    graph = make_graph()
    graph.topic("far", cluster="west")
    assert choose_topics(graph, None) == ("dead", "in", "mid", "out")
    assert choose_topics(graph, ["out", "in", "out"]) == ("in", "out")
    with pytest.raises(UserMistake) as caught:
        choose_topics(graph, ["oot"])
    assert str(caught.value) == "graph 'g' has no topic 'oot': did you mean out?"


def test_writers_are_those_of_a_topic_or_its_dead_letters_each_after_its_readers() -> None:
    graph = make_graph()
    assert [[p.id for p in choose_writers(graph, names)] for names in (["in"], ["mid"], ["mid", "out"], ["dead"])] == [
        [], ["first"], ["second", "first"], ["second", "first"],
    ]  # fmt: skip


def test_circle_of_processors_has_each_of_them_once() -> None:
    graph = Graph("g")
    for topic in ("a", "b"):
        graph.topic(topic)
    graph.map("a", to="b", id="there")(bytes)
    graph.map("b", to="a", id="back")(bytes)
    assert sorted(p.id for p in choose_writers(graph, ["a", "b"])) == ["back", "there"]


def test_pipelines_into_topics_are_writers_by_the_numbers_of_their_runs() -> None:
    graph = make_graph()
    graph.topic("totals")
    graph.pipeline("out", to="totals", mode="append", id="count")(lambda out: out)
    graph.pipeline("out", to=ks.Parquet("tables/copy"), id="copy")(lambda out: out)
    found = choose_writers(graph, ["out", "totals"])
    assert [(each.id, each.inputs, each.outputs) for each in found] == [
        ("count", ("__ks.totals.runs",), frozenset({"totals"})),
        ("second", ("mid",), frozenset({"out", "dead"})),
    ]


def test_weaker_guarantees_are_taken_by_the_ends_alone() -> None:
    assert choose_writers(make_graph(guarantee="at_least_once"), ["out"]) == []


JOURNALED = "its deliveries are committed by its journal"
NO_HASH = "its outputs have no delivery hash (hash_header=False)"


@pytest.mark.parametrize(
    ("options", "why"), [({"hash_header": False}, NO_HASH), ({"persistence": "journal"}, JOURNALED)]
)
def test_processor_whose_transactions_cannot_be_told_is_refused_with_the_reason(
    options: dict[str, Any], why: str
) -> None:
    graph = make_graph(**options)
    assert choose_writers(graph, ["mid"])[0].id == "first"
    with pytest.raises(UserMistake) as caught:
        choose_writers(graph, ["out"])
    assert str(caught.value) == (
        f"processor 'second' writes out, which cannot be cut: {why}: name the other topics, or read these without a cut"
    )


def test_dead_letters_of_a_processor_without_hashes_can_be_cut() -> None:
    graph = make_graph(hash_header=False)
    assert [p.id for p in choose_writers(graph, ["dead"])] == ["second", "first"]


def test_outputs_on_another_cluster_are_refused() -> None:
    graph = make_graph()
    graph.topic("far", cluster="west")
    graph.map("in", to="far", errors="far.dead", id="mirror")(bytes)
    with pytest.raises(UserMistake, match="processor 'mirror' writes far, which cannot be cut: its outputs are on clu"):
        choose_writers(graph, ["far"])


def test_dead_letters_of_a_sink_that_stores_its_offsets_are_refused() -> None:
    graph = make_graph()
    target = SQLite("rows.db", table="rows", columns=("value",), evidence="offsets")
    graph.sink("in", to=target, id="store")(lambda value: {})
    with pytest.raises(UserMistake, match="processor 'store' writes dead, which cannot be cut: its offsets are stored"):
        choose_writers(graph, ["dead"])
