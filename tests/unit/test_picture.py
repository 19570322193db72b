"""picture.py: the graph in words, as Mermaid, and as an SVG in which nothing overlaps."""

from __future__ import annotations

import inspect
import random
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

from kstreams_py.graph import picture
from kstreams_py.graph.declarations import State
from kstreams_py.graph.layout import MARGIN, ROW_GAP, Box, Layout, Line, lay_out
from kstreams_py.graph.topology import Graph
from kstreams_py.sinks import Parquet, SQLite

SVG = "{http://www.w3.org/2000/svg}"


def lay_out_graph(graph: Graph) -> Layout:
    """The layout that the SVG draws."""
    return lay_out(*picture.elements(graph))


class NeedsEscapes:
    """A serde whose repr has every character that XML escapes."""

    def __repr__(self) -> str:
        return "<Sharp & \"quoted\" 'twice'>"

    def serialize(self, value: Any, /) -> bytes:
        return bytes(value)

    def deserialize(self, data: bytes, /) -> Any:
        return data


def empty() -> Graph:
    return Graph("empty")


def topics_only() -> Graph:
    graph = Graph("topics", errors="unused")
    graph.topic("a")
    graph.topic("b")
    return graph


def one_map() -> Graph:
    graph = Graph("shop")
    graph.map(graph.topic("orders"), to=graph.topic("priced"), id="price")(bytes.upper)
    return graph


def flights() -> Graph:
    graph = Graph("flights", errors="flights.errors")
    airports = [graph.topic(name) for name in ("ewr", "jfk", "lga")]
    merged, departed, _ = (graph.topic(name) for name in ("flights", "departed", "cancelled"))
    graph.alts(*airports, to=merged, id="merge")(bytes.upper)
    graph.map("flights", to=["departed", "cancelled"], id="split")(max)
    graph.sink(departed, id="store", guarantee="at_least_once")(max)
    return graph


def shop() -> Graph:
    """Eight processors, with lines that pass several columns."""
    graph = Graph("shop", errors="shop.errors")
    for name in ("orders", "payments", "customers", "priced", "paid", "enriched", "stock", "shipped", "alerts"):
        graph.topic(name)
    graph.topic("invoices")
    graph.topic("audit")
    graph.map("orders", to="priced", id="price")(max)
    graph.join("priced", "payments", by="order", to="paid", id="match")(max)
    graph.join("paid", "customers", by="order", to=["enriched", "alerts"], id="enrich")(max)
    graph.alts("enriched", "stock", "orders", to="shipped", id="ship")(max)
    graph.map("shipped", to=["invoices", "audit"], id="invoice")(max)
    graph.sink("alerts", id="page")(max)
    graph.sink("invoices", "priced", id="bill")(max)
    graph.sink("audit", "payments", "customers", id="archive", alts=True, errors=None)(max)
    return graph


def circle() -> Graph:
    """A repair processor writes failed records back to an input; its own dead letters have a topic of their own."""
    graph = Graph("circle", errors="errors")
    for name in ("in", "again", "out", "done"):
        graph.topic(name)
    graph.alts("in", "again", to="out", id="work")(max)
    graph.map("out", to="done", id="check")(max)
    graph.map("errors", to="again", id="repair", errors="given.up")(max)
    graph.sink("given.up", id="alarm", errors=None)(max)
    return graph


def only_circles() -> Graph:
    """Every topic has a writer; a processor and a topic share a name; "a" also writes to the dead letter topic."""
    graph = Graph("circles", errors="errors")
    for name in ("a", "b"):
        graph.topic(name)
    graph.map("a", to=["b", "errors"], id="a")(max)
    graph.map("b", to="a", id="b")(max)
    graph.sink("errors", id="late", errors=None)(max)
    return graph


def dead_letters_backwards() -> Graph:
    """The last processor writes dead letters that an earlier one reads."""
    graph = Graph("behind", errors="errors")
    for name in ("a", "b", "c"):
        graph.topic(name)
    graph.map("a", to="b", id="first")(max)
    graph.map("errors", to="c", id="repair", errors=None)(max)
    graph.sink("c", id="last")(max)
    return graph


def random_graph(seed: int) -> Graph:
    choose = random.Random(seed)
    graph = Graph("random", errors=choose.choice([None, "errors"]))
    names = [f"t{i}" + "x" * choose.randrange(12) for i in range(choose.randint(3, 12))]
    for name in names:
        graph.topic(name)
    for i in range(choose.randint(1, 12)):
        picked = choose.sample(names, choose.randint(2, min(5, len(names))))
        cut = choose.randint(1, len(picked) - 1)
        reads, writes = picked[:cut], picked[cut:]
        if choose.random() < 0.3:
            graph.sink(*reads, id=f"p{i}")(max)
        elif len(reads) == 1:
            graph.map(*reads, to=writes, id=f"p{i}")(max)
        else:
            graph.join(*reads, by="order", to=writes, id=f"p{i}", errors=choose.choice([None, "errors", "others"]))(max)
    return graph


@cache
def layouts() -> dict[str, tuple[Graph, Layout]]:
    """Graphs and their layouts."""
    makers = (empty, topics_only, one_map, flights, shop, circle, only_circles, dead_letters_backwards)
    graphs = {make.__name__: make() for make in makers}
    graphs |= {f"random {seed}": random_graph(seed) for seed in range(15)}
    return {name: (graph, lay_out_graph(graph)) for name, graph in graphs.items()}


def expected_nodes(graph: Graph) -> Counter[tuple[str, str]]:
    dead_letters = {processor.errors for processor in graph.processors}
    return Counter(
        [("dead_letters" if name in dead_letters else "topic", name) for name in graph.topics]
        + [("processor", processor.id) for processor in graph.processors]
    )


def expected_edges(graph: Graph) -> Counter[tuple[str, str, bool]]:
    edges: Counter[tuple[str, str, bool]] = Counter()
    for processor in graph.processors:
        node = f"processor {processor.id}"
        edges.update((f"topic {topic.name}", node, False) for topic in processor.inputs)
        edges.update((node, f"topic {topic.name}", False) for topic in processor.outputs)
        edges.update([(node, f"topic {processor.errors}", True)] if processor.errors else [])
    return edges


def sides_of(box: Box) -> tuple[float, float, float, float]:
    return box.x - box.width / 2, box.x + box.width / 2, box.y - box.height / 2, box.y + box.height / 2


def points_along(line: Line) -> Iterator[tuple[float, float]]:
    """Points along a line as svg() draws it: straight pieces and curves in turns."""
    for i, ((x0, y0), (x1, y1)) in enumerate(pairwise(line.points)):
        for step in range(33):
            t = step / 32
            if i % 2 == 0:
                yield x0 + (x1 - x0) * t, y0 + (y1 - y0) * t
            else:  # control points half way, level with the ends
                middle = (x0 + x1) / 2
                yield (
                    (1 - t) ** 3 * x0 + 3 * (1 - t) ** 2 * t * middle + 3 * (1 - t) * t**2 * middle + t**3 * x1,
                    (1 - t) ** 3 * y0 + 3 * (1 - t) ** 2 * t * y0 + 3 * (1 - t) * t**2 * y1 + t**3 * y1,
                )


def name_node(box: Box) -> str:
    return f"{'processor' if box.role == 'processor' else 'topic'} {box.name}"


# Text.


def test_text_is_the_description_of_the_graph() -> None:
    assert picture.text(flights()) == flights().describe()


def test_mermaid_has_every_node_and_edge_once() -> None:
    assert (
        picture.mermaid(flights())
        == """\
flowchart LR
    n0(["ewr"]):::topic
    n1(["jfk"]):::topic
    n2(["lga"]):::topic
    n3(["flights"]):::topic
    n4(["departed"]):::topic
    n5(["cancelled"]):::topic
    n6(["flights.errors"]):::dead_letters
    n7["merge<br/>alts, exactly once"]:::processor
    n8["split<br/>fork, exactly once"]:::processor
    n9["store<br/>sink, at least once"]:::processor
    n0 --> n7
    n1 --> n7
    n2 --> n7
    n7 --> n3
    n7 -.-> n6
    n3 --> n8
    n8 --> n4
    n8 --> n5
    n8 -.-> n6
    n4 --> n9
    n9 -.-> n6
    classDef topic fill:#f4f6f9,stroke:#7b8794,color:#1f2933
    classDef processor fill:#e6f0ff,stroke:#3b74d1,color:#12305f
    classDef pipeline fill:#f3eefb,stroke:#8059c4,color:#3c2468
    classDef target fill:#eef7ec,stroke:#4f9a46,color:#1f4a1a
    classDef dead_letters fill:#fdeeec,stroke:#cf5044,color:#7f2219"""
    )


def test_text_and_mermaid_name_the_state_and_the_target_of_a_processor() -> None:
    graph = Graph("shop")
    orders, totals = graph.topic("orders"), graph.topic("totals")
    graph.map(orders, to=totals, id="add", state=State("sums"))(lambda order, state: order)
    graph.sink(totals, to=SQLite("shop.sqlite", table="totals", columns=("total",)), id="store")(lambda total: (total,))
    assert (
        picture.text(graph).partition("processors\n")[2]
        == """\
  add: map, exactly_once, committed
    reads         orders
    writes        totals
    dead letters  none
    state         sums, key String(encoding='utf-8'), value Json(), in memory
    changelog     __ks.shop.sums.changelog
  store: sink, exactly_once, committed
    reads         totals
    dead letters  none
    stores        shop.sqlite: table totals, by hash"""
    )
    assert (
        picture.mermaid(graph).partition("    classDef")[0]
        == """\
flowchart LR
    n0(["orders"]):::topic
    n1(["totals"]):::topic
    n2["add<br/>map, exactly once<br/>state sums"]:::processor
    n3["store<br/>sink, exactly once"]:::processor
    n4(["shop.sqlite: table totals"]):::target
    n0 --> n2
    n2 --> n1
    n1 --> n3
    n3 --> n4
"""
    )


def test_mermaid_names_ordered_processors_and_pipelines_with_inputs_and_targets() -> None:
    graph = Graph("airport")
    events, applied, counts = (graph.topic(name) for name in ("events", "applied", "counts"))
    graph.ordered(events, to=applied, id="apply")(lambda event: event)
    graph.pipeline(events, applied, to=Parquet("tables/gates"), id="gates", every="2 minutes")(lambda df_1, df_2: df_1)
    graph.pipeline(applied, to=counts, id="count", mode="append")(lambda df: df)
    assert (
        picture.mermaid(graph).partition("    classDef")[0]
        == """\
flowchart LR
    n0(["events"]):::topic
    n1(["applied"]):::topic
    n2(["counts"]):::topic
    n3["apply<br/>ordered map, exactly once<br/>state apply-order"]:::processor
    n4["gates<br/>Spark, complete, every 120 s"]:::pipeline
    n5(["tables/gates"]):::target
    n6["count<br/>Spark, append, every 60 s"]:::pipeline
    n0 --> n3
    n3 --> n1
    n0 --> n4
    n1 --> n4
    n4 --> n5
    n1 --> n6
    n6 --> n2
"""
    )
    drawn = ElementTree.fromstring(picture.svg(graph))
    assert Counter(each.get("class") for each in drawn if each.tag == f"{SVG}g" and each.get("class") != "line") == {
        "topic": 3, "processor": 1, "pipeline": 2, "target": 1,
    }  # fmt: skip


# Layout.


def test_layout_has_every_node_and_edge_once() -> None:
    for name, (graph, drawn) in layouts().items():
        assert Counter((box.role, box.name) for box in drawn.boxes) == expected_nodes(graph), name
        assert Counter((line.source, line.target, line.dead) for line in drawn.lines) == expected_edges(graph), name


def test_layout_boxes_do_not_overlap_and_are_within_the_picture() -> None:
    for name, (_, drawn) in layouts().items():
        for box in drawn.boxes:
            left, right, top, bottom = sides_of(box)
            assert min(left, top) >= MARGIN - 1e-6, (name, box)
            assert right <= drawn.width - MARGIN + 1e-6, (name, box)
            assert bottom <= drawn.height - MARGIN + 1e-6, (name, box)
        for one, other in combinations(drawn.boxes, 2):
            left, right, top, bottom = sides_of(one)
            other_left, other_right, other_top, other_bottom = sides_of(other)
            apart = max(other_left - right, left - other_right, other_top - bottom, top - other_bottom)
            assert apart >= ROW_GAP - 1e-6, (name, one.name, other.name)


def test_layout_lines_cross_no_box_and_end_at_the_sides_of_their_own() -> None:
    for name, (_, drawn) in layouts().items():
        for line in drawn.lines:
            points = list(points_along(line))
            for box in drawn.boxes:
                left, right, top, bottom = sides_of(box)
                inside = [(x, y) for x, y in points if left < x < right and top < y < bottom]
                assert not inside, (name, line.source, line.target, box.name)
                ends = [line.points[0]] * (name_node(box) == line.source)
                ends += [line.points[-1]] * (name_node(box) == line.target and not line.joins)
                assert all(x in (left, right) and top < y < bottom for x, y in ends), (name, line, box)
            assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in points), (name, line)


def test_layout_line_that_joins_another_ends_on_a_line_to_the_same_topic() -> None:
    for name, (_, drawn) in layouts().items():
        for line in drawn.lines:
            if line.joins:
                others = [other for other in drawn.lines if other.target == line.target and not other.joins]
                assert any(line.points[-1] in other.points for other in others), (name, line)


def test_layout_dead_letter_line_between_two_others_to_the_same_topic_joins_them() -> None:
    lines = lay_out_graph(flights()).lines
    assert [(line.source, line.joins) for line in lines if line.dead] == [
        ("processor merge", False),
        ("processor split", True),
        ("processor store", False),
    ]


def test_layout_lines_run_left_to_right_except_one_in_each_circle() -> None:
    def right_to_left(drawn: Layout) -> list[tuple[str, str]]:
        return [(line.source, line.target) for line in drawn.lines if line.points[0][0] > line.points[-1][0]]

    assert [right_to_left(lay_out_graph(make())) for make in (flights, shop, circle, dead_letters_backwards)] == [
        [],
        [],
        [("topic again", "processor work")],
        [("processor last", "topic errors")],
    ]


def test_layout_dead_letter_topics_and_all_after_them_are_below_the_rest() -> None:
    boxes = {box.name: box for box in lay_out_graph(circle()).boxes}
    low = {"errors", "repair", "given.up", "alarm", "again"}
    assert max(box.y for name, box in boxes.items() if name not in low) < min(boxes[name].y for name in low)


def test_layout_untangles_crossings_that_the_declarations_have() -> None:
    graph = Graph("crossed")
    for name in ("a", "b", "c", "x", "y", "z"):
        graph.topic(name)
    for source, target in (("a", "z"), ("b", "y"), ("c", "x")):
        graph.map(source, to=target, id=f"{source}{target}")(max)
    heights = {box.name: box.y for box in lay_out_graph(graph).boxes}
    assert [heights[name] for name in ("a", "b", "c")] == [heights[name] for name in ("z", "y", "x")]
    assert all(len({y for _, y in line.points}) == 1 for line in lay_out_graph(graph).lines)


def test_layout_of_a_long_chain_needs_no_deep_stack() -> None:
    graph = Graph("chain")
    for i in range(60):
        graph.topic(f"t{i}")
    for i in range(59):
        graph.map(f"t{i}", to=f"t{i + 1}", id=f"p{i}")(max)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)  # half as deep as the chain is long
    try:
        drawn = lay_out_graph(graph)
    finally:
        sys.setrecursionlimit(limit)
    assert (len(drawn.boxes), len(drawn.lines), drawn.height) == (119, 118, 60 + 2 * MARGIN)


# SVG.


def test_svg_is_well_formed_and_draws_every_node_and_edge_once() -> None:
    nodes = ("topic", "dead_letters", "processor")
    for name, (graph, _) in layouts().items():
        root = ElementTree.fromstring(picture.svg(graph))
        drawn = Counter((each.get("class"), str(each.findtext(f"{SVG}text[@font-size='13']"))) for each in root)
        boxes = Counter({node: count for node, count in drawn.items() if node[0] in nodes})
        assert boxes == expected_nodes(graph), name
        lines = Counter(str(each.findtext(f"{SVG}title")) for each in root if each.get("class") == "line")
        names = [(a.partition(" ")[2], b.partition(" ")[2]) for a, b, _ in expected_edges(graph).elements()]
        assert lines == Counter(f"{a} → {b}" for a, b in names), name
        assert root.findtext(f"{SVG}title") == graph.name


def test_svg_is_the_same_every_time() -> None:
    assert picture.svg(shop()) == picture.svg(shop())


def test_svg_of_one_map_has_its_kind_above_and_its_guarantee_below_its_name() -> None:
    root = ElementTree.fromstring(picture.svg(one_map()))
    words = [sorted((float(text.get("y", "")), text.text) for text in each.iter(f"{SVG}text")) for each in root[3:]]
    assert [[word for _, word in lines] for lines in words] == [
        ["orders"],
        ["priced"],
        ["map", "price", "exactly once"],
    ]


def test_svg_escapes_the_repr_of_a_serde() -> None:
    graph = Graph("sharp")
    graph.topic("a", value=NeedsEscapes())
    root = ElementTree.fromstring(picture.svg(graph))
    assert root.findtext(f"{SVG}g/{SVG}title") == "a: key Bytes(), value <Sharp & \"quoted\" 'twice'>"
