"""Draws a graph from left to right, as text, Mermaid or SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import pairwise
from typing import Final

from kstreams_py.graph.declarations import Topic, show_serde
from kstreams_py.graph.layout import ARROW, Box, Edge, Line, lay_out
from kstreams_py.graph.sink import Sink
from kstreams_py.graph.topology import Graph

FONT: Final = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
INKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "topic": ("#f4f6f9", "#7b8794", "#1f2933"),
    "processor": ("#e6f0ff", "#3b74d1", "#12305f"),
    "channel": ("#fdf6e3", "#b58900", "#5b4500"),
    "pipeline": ("#f3eefb", "#8059c4", "#3c2468"),
    "target": ("#eef7ec", "#4f9a46", "#1f4a1a"),
    "dead_letters": ("#fdeeec", "#cf5044", "#7f2219"),
}
"""Colours of fill, stroke and text, by role. Boxes are filled, so they are legible on light and dark pages."""


def text(graph: Graph) -> str:
    """Returns the graph as plain text."""
    return graph.describe()


def mermaid(graph: Graph) -> str:
    """Returns the graph as a Mermaid flowchart."""
    boxes, edges = elements(graph)
    names = {node: f"n{i}" for i, node in enumerate(boxes)}
    states = {f"processor {each.id}": f"<br/>state {each.state.name}" for each in graph.processors if each.state}
    lines = ["flowchart LR"]
    for node, box in boxes.items():
        words = f"<br/>{box.over}, {box.under}{states.get(node, '')}"
        label = f'["{box.name}{words}"]' if box.is_function else f'(["{box.name}"])'
        lines.append(f"    {names[node]}{label}:::{box.role}")
    lines += [f"    {names[a]} {'-.->' if dead else '-->'} {names[b]}" for a, b, dead in edges]
    lines += [
        f"    classDef {role} fill:{fill},stroke:{stroke},color:{ink}"
        for role, (fill, stroke, ink) in INKS.items()
        if role != "channel" or graph.channels
    ]
    return "\n".join(lines)


def elements(graph: Graph) -> tuple[dict[str, Box], list[Edge]]:
    """Returns all boxes and edges as declared. The key of a box tells a topic from a processor of the same name."""
    dead_letters = {processor.errors for processor in graph.processors}
    boxes = {}
    for topic in graph.topics.values():
        tooltip = f"{topic.name}: key {show_serde(topic.key)}, value {show_serde(topic.value)}"
        role = "dead_letters" if topic.name in dead_letters else "topic"
        boxes[f"topic {topic.name}"] = Box(role, topic.name, "", "", tooltip)
    edges = []
    for processor in graph.processors:
        node = f"processor {processor.id}"
        kind, guarantee = (word.replace("_", " ") for word in (processor.kind, processor.guarantee))
        kind = f"ordered {kind}" if processor.ordered else kind
        boxes[node] = Box("processor", processor.id, kind, guarantee, f"{processor.id}: {kind}, {guarantee}")
        edges += [Edge(f"topic {topic.name}", node, dead=False) for topic in processor.inputs]
        edges += [Edge(node, f"topic {topic.name}", dead=False) for topic in processor.outputs]
        if processor.target is not None:
            target = f"target {processor.target}"
            boxes[target] = _target_box(processor.target)
            edges.append(Edge(node, target, dead=False))
        edges += [Edge(node, f"topic {processor.errors}", dead=True)] if processor.errors else []
    for channel in graph.channels.values():
        boxes[f"channel {channel.name}"] = Box("channel", channel.name, "", "", f"channel {channel.name}")
        if channel.source is not None:
            source = str(channel.source)
            boxes[f"target {source}"] = Box("target", source, "", "", f"source {source}")
            edges.append(Edge(f"target {source}", f"channel {channel.name}", dead=False))
    for task in graph.tasks:
        node = f"processor {task.id}"
        boxes[node] = Box("processor", task.id, task.word, "at least once", f"{task.id}: {task.word}, at least once")
        ends = [f"{'channel' if each.topic is None else 'topic'} {each}" for each in task.inputs]
        edges += [Edge(end, node, dead=False) for end in ends]
        edges += [Edge(node, f"channel {channel}", dead=False) for channel in task.outputs]
        edges += [Edge(node, f"topic {topic}", dead=False) for topic in task.topics]
        edges += [Edge(node, f"topic {each}", dead=True) for each in {each.errors for each in task.inputs} if each]
        if task.target is not None:
            target = f"target {task.target}"
            boxes[target] = _target_box(task.target)
            edges.append(Edge(node, target, dead=False))
    for pipeline in graph.pipelines:
        node, target = f"pipeline {pipeline.id}", str(pipeline.target)
        every = f"every {pipeline.every} s"
        tooltip = f"{pipeline.id}: a pipeline in Spark, {pipeline.mode}, {every}"
        boxes[node] = Box("pipeline", pipeline.id, f"Spark, {pipeline.mode}", every, tooltip)
        kept = f"topic {target}" if isinstance(pipeline.target, Topic) else f"target {target}"
        boxes.setdefault(kept, Box("target", target, "", "", target))
        edges += [Edge(f"topic {topic.name}", node, dead=False) for topic in pipeline.inputs]
        edges.append(Edge(node, kept, dead=False))
    return boxes, edges


def _target_box(target: Sink) -> Box:
    return Box("target", str(target), "", "", f"{target}: {', '.join(target.columns)}")


def svg(graph: Graph) -> str:
    """Returns the graph as a self-contained SVG image."""
    drawn = lay_out(*elements(graph))
    size = f"{round(drawn.width)} {round(drawn.height)}"
    width, height = size.split()
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {size}" role="img" '
        f'style="max-width:100%;height:auto" font-family="{FONT}" text-anchor="middle">'
    )
    title = f"<title>{escape(graph.name)}</title>"
    return "\n".join([opening, title, *map(_draw_line, drawn.lines), *map(_draw_box, drawn.boxes), "</svg>"])


def _draw_line(line: Line) -> str:
    """Draws a path of straight and curved parts in turn, and its arrow."""
    colour, dashes = (INKS["dead_letters"][1], ' stroke-dasharray="5 4"') if line.dead else (INKS["topic"][1], "")
    (x, y), points, arrow = line.points[-1], list(line.points), ""
    if not line.joins:
        foot = x - ARROW if points[-2][0] < x else x + ARROW
        points[-1] = (foot, y)
        arrow = f'<path d="M{x:.1f} {y:.1f}L{foot:.1f} {y - 4:.1f}V{y + 4:.1f}Z" fill="{colour}"/>'
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for i, ((left, above), (x, y)) in enumerate(pairwise(points)):
        middle = (left + x) / 2
        bend = f"C{middle:.1f} {above:.1f} {middle:.1f} {y:.1f} " if i % 2 else "L"
        path += f"{bend}{x:.1f} {y:.1f}"
    name = escape(f"{line.source.partition(' ')[2]} \N{RIGHTWARDS ARROW} {line.target.partition(' ')[2]}")
    return (
        f'<g class="line"><title>{name}</title>'
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>{arrow}</g>'
    )


def _draw_box(box: Box) -> str:
    """Draws a rounded box with its text: the name, and small words over and under it."""
    fill, stroke, ink = INKS[box.role]
    bend = 7 if box.is_function else box.height / 2
    dashes = ' stroke-dasharray="5 4"' if box.role == "dead_letters" else ""
    weight = ' font-weight="600"' if box.is_function else ""
    left, top = box.x - box.width / 2, box.y - box.height / 2
    words = [
        f'<text x="{box.x:.1f}" y="{box.y + down:.1f}" font-size="10.5" fill="{ink}">{escape(word)}</text>'
        for word, down in ((box.over, -14.5), (box.under, 22.0))
        if word
    ]
    return (
        f'<g class="{box.role}"><title>{escape(box.tooltip)}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{bend:g}" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.3"{dashes}/>'
        f'<text x="{box.x:.1f}" y="{box.y + 4.5:.1f}" font-size="13"{weight} fill="{ink}">{escape(box.name)}</text>'
        f"{''.join(words)}</g>"
    )
