"""Places the boxes and lines of a graph's picture, in columns from left to right.

The layout is layered (Sugiyama, Tagawa, Toda 1981): columns by longest path, fewer crossings by sweeps of barycentres,
heights by least squares. Lines bend only in the gaps between columns, and each crosses a column at its own place, so
no line runs through a box. Dead-letter topics, and processors that read only these, are below all others.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Final, NamedTuple

MARGIN: Final = 16.0
COLUMN_GAP: Final = 54.0
ROW_GAP: Final = 20.0
PORT_GAP: Final = 11.0
ARROW: Final = 8.0
CHARACTER_WIDTH: Final = 7.9
SMALL_CHARACTER_WIDTH: Final = 6.1
SWEEPS: Final = 96
LINE_WEIGHT: Final = 16

Point = tuple[float, float]
Pairs = Sequence[tuple[str, str]]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A topic, channel, processor, pipeline or target as drawn: its text, and its centre and size in pixels.

    - `role`: topic, dead_letters, channel, processor, pipeline or target.
    - `over`, `under`: the words over and under the name of a function; "" for others.
    """

    role: str
    name: str
    over: str
    under: str
    tooltip: str
    x: float = 0.0
    y: float = 0.0

    @property
    def is_function(self) -> bool:
        """Whether it is a processor or a pipeline."""
        return self.role in ("processor", "pipeline")

    @property
    def width(self) -> float:
        small = max(len(self.over), len(self.under))
        return max(len(self.name) * CHARACTER_WIDTH, small * SMALL_CHARACTER_WIDTH) + 26

    @property
    def height(self) -> float:
        return 60.0 if self.is_function else 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """An edge as drawn through these points, with straight and curved parts in turn.

    It ends in an arrow unless it joins another line.
    """

    source: str
    target: str
    dead: bool
    points: tuple[Point, ...]
    joins: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all boxes and lines, in pixels from the upper left corner."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: float
    height: float


class Edge(NamedTuple):
    """A line from one box to another, by their keys; `dead` if dead letters take it."""

    source: str
    target: str
    dead: bool


class _Chain(NamedTuple):
    """An edge and its nodes from left to right, one in each column; `back` if it is drawn against its direction."""

    edge: Edge
    nodes: list[str]
    back: bool


def lay_out(boxes: Mapping[str, Box], edges: Sequence[Edge], gap: float = COLUMN_GAP) -> Layout:
    """Places all boxes, by their keys, and all lines. The same graph always has the same layout.

    - `gap`: pixels between two columns.
    """
    column = _columns(boxes, edges)
    chains = _chains(edges, column)
    low = _low(boxes, chains, column)
    pairs = sorted({pair for chain in chains for pair in pairwise(chain.nodes)})
    order = _order(column, pairs, low)
    y = _rows(order, chains, low, {node: boxes[node].height if node in boxes else 0.0 for node in column})
    placed, spans = _place(boxes, order, y, gap)
    return Layout(
        boxes=tuple(placed.values()),
        lines=tuple(_lines(placed, chains, {node: spans[i] for node, i in column.items()}, y)),
        width=(spans[-1][1] if spans else 0.0) + MARGIN,
        height=max((y[node] + (boxes[node].height / 2 if node in boxes else 0.0) for node in y), default=0.0) + MARGIN,
    )


def _columns(boxes: Iterable[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Returns the column of each box: to the right of all boxes that lead to it.

    A cycle begins at the box declared first among those that an already placed box leads to.
    """
    before: dict[str, list[str]] = {node: [edge.source for edge in edges if edge.target == node] for node in boxes}
    column: dict[str, int] = {}
    while waiting := [node for node in before if node not in column]:
        ready = [node for node in waiting if all(source in column for source in before[node])]
        entered = [node for node in waiting if any(source in column for source in before[node])]
        for node in ready or (entered or waiting)[:1]:
            column[node] = 1 + max((column[source] for source in before[node] if source in column), default=-1)
    for node, sources in before.items():
        after = [column[edge.target] for edge in edges if edge.source == node]
        if not sources and after:
            column[node] = min(after) - 1
    return column


def _chains(edges: Sequence[Edge], column: dict[str, int]) -> list[_Chain]:
    """Returns the edges, with a node in each column that they pass, and adds these nodes to `column`.

    Edges to the same dead-letter topic share one lane.
    """
    chains, lanes = [], set()
    for edge in sorted(edges, key=lambda edge: edge.dead and column[edge.source]):
        back = column[edge.source] > column[edge.target]
        left, right = (edge.target, edge.source) if back else (edge.source, edge.target)
        lane = edge.dead and not back
        label = edge.target if lane else f"{edge.source} {edge.target}"
        between = {f"{label} @{i}": i for i in range(column[left] + 1, column[right])}
        column |= between
        nodes = [left, *between, right]
        if lane and nodes[1] in lanes:
            nodes = nodes[:2]
        lanes |= set(between) if lane else set()
        chains.append(_Chain(edge, nodes, back))
    return chains


def _low(boxes: Mapping[str, Box], chains: Sequence[_Chain], column: Mapping[str, int]) -> set[str]:
    """Returns the nodes below all others: dead letters, their lanes, and nodes that only these lead to."""
    low = {node for node, box in boxes.items() if box.role == "dead_letters"}
    ahead = [chain for chain in chains if not chain.back]
    for node in sorted(boxes, key=lambda node: column[node]):
        sources = [chain.edge.source for chain in ahead if chain.edge.target == node]
        if sources and low.issuperset(sources):
            low.add(node)
    for edge, nodes, back in chains:
        if (edge.dead and not back) or low.issuperset((edge.source, edge.target)):
            low.update(node for node in nodes if node not in boxes)
    return low


def _order(column: Mapping[str, int], pairs: Pairs, low: set[str]) -> list[list[str]]:
    """Returns the nodes of each column from top to bottom, with few crossings; the low nodes come last."""
    order: list[list[str]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
    for node, place in sorted(column.items(), key=lambda item: item[0] in low):
        order[place].append(node)
    left: dict[str, list[str]] = {node: [] for node in column}
    right: dict[str, list[str]] = {node: [] for node in column}
    for a, b in pairs:
        left[b].append(a)
        right[a].append(b)
    best, fewest = order, _crossings(order, pairs)
    for sweep in range(SWEEPS // 4):
        order = [list(nodes) for nodes in order]
        near, path = (right, order[::-1]) if sweep % 2 else (left, order)
        for fixed, nodes in pairwise(path):
            rank = {node: i for i, node in enumerate(fixed)}
            centre = {node: fmean([rank[other] for other in near[node]] or [i]) for i, node in enumerate(nodes)}
            nodes.sort(key=lambda node: (node in low, centre[node]))
        if (crossings := _crossings(order, pairs)) < fewest:
            best, fewest = order, crossings
    return best


def _crossings(order: Sequence[Sequence[str]], pairs: Pairs) -> int:
    """Counts the pairs of lines that cross between the columns."""
    place = {node: (i, rank) for i, nodes in enumerate(order) for rank, node in enumerate(nodes)}
    ends: dict[int, list[tuple[int, int]]] = {}
    for left, right in pairs:
        ends.setdefault(place[left][0], []).append((place[left][1], place[right][1]))
    crossings = 0
    for gap in ends.values():
        passed: list[int] = []
        for _, rank in sorted(gap):
            crossings += len(passed) - bisect_right(passed, rank)
            insort(passed, rank)
    return crossings


def _rows(
    order: Sequence[Sequence[str]], chains: Sequence[_Chain], low: set[str], heights: Mapping[str, float]
) -> dict[str, float]:
    """Returns the y of each node's centre: lines as straight as the order allows, low nodes below all others."""
    y: dict[str, float] = {}
    floor = MARGIN
    for is_low in (False, True):
        columns = [[node for node in nodes if (node in low) is is_low] for nodes in order]
        here = _relaxed(
            columns, [[node for node in chain.nodes if (node in low) is is_low] for chain in chains], heights
        )
        top = min((at - heights[node] / 2 for node, at in here.items()), default=0.0)
        y |= {node: at - top + floor for node, at in here.items()}
        floor = max((y[node] + heights[node] / 2 for node in here), default=0.0) + 1.5 * ROW_GAP
    return y


def _relaxed(
    columns: Sequence[Sequence[str]], chains: Sequence[Sequence[str]], heights: Mapping[str, float]
) -> dict[str, float]:
    """Moves each node as near to the mean of its neighbours as the order and the gaps of its column allow.

    The neighbours of a node within a line are all nodes of that line. A box has neighbours on both sides in the first
    sweeps, then only on the side that the sweep comes from. The last sweep comes from the left.
    """
    near: dict[str, list[tuple[str, int, int]]] = {node: [] for nodes in columns for node in nodes}
    for nodes in chains:
        for a, b in pairwise(nodes):
            near[a] += [(b, 1, -1)] if heights[a] else []
            near[b] += [(a, 1, 1)] if heights[b] else []
        within = [node for node in nodes if not heights[node]]
        for node in within:
            near[node] += [(other, 1 if heights[other] else LINE_WEIGHT, 0) for other in nodes]
    gaps = [
        [0.0, *((heights[a] + heights[b]) / 2 + ROW_GAP for a, b in pairwise(nodes))][: len(nodes)] for nodes in columns
    ]
    stacks = [(nodes, list(accumulate(gap))) for nodes, gap in zip(columns, gaps, strict=True)]
    y = {node: at for nodes, stack in stacks for node, at in zip(nodes, stack, strict=True)}
    for sweep in range(SWEEPS):
        towards = 0 if sweep < SWEEPS // 2 else 1 if sweep % 2 else -1
        for nodes, stack in stacks[:: towards or 1]:
            wanted = []
            for node in nodes:
                ties = [(y[other], weight) for other, weight, side in near[node] if side * towards >= 0]
                total = sum(weight for _, weight in ties)
                place = sum(at * weight for at, weight in ties) / total if ties else y[node]
                wanted.append((place, 1 if heights[node] else LINE_WEIGHT))
            y.update(zip(nodes, _settled(wanted, stack), strict=True))
    return y


def _settled(wanted: Sequence[tuple[float, int]], stack: Sequence[float]) -> list[float]:
    """Returns the places nearest to the wanted ones (weighted least squares), at least as far apart as the stack says.

    Without the stack, this is isotonic regression, solved by pooling adjacent violators (Ayer et al. 1955).
    """
    pools: list[tuple[float, int, int]] = []
    for (place, pull), shift in zip(wanted, stack, strict=True):
        mean, weight, count = place - shift, pull, 1
        while pools and pools[-1][0] > mean:
            other, more, members = pools.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, count = weight + more, count + members
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, stack, strict=True)]


def _place(
    boxes: Mapping[str, Box], order: Sequence[Sequence[str]], y: Mapping[str, float], gap: float
) -> tuple[dict[str, Box], list[Span]]:
    """Puts each box in the middle of its column. Returns the boxes, and the left and right edge of each column."""
    placed: dict[str, Box] = {}
    spans: list[Span] = []
    left = MARGIN
    for nodes in order:
        here = {node: boxes[node] for node in nodes if node in boxes}
        width = max(box.width for box in here.values())
        placed |= {node: replace(box, x=left + width / 2, y=y[node]) for node, box in here.items()}
        spans.append((left, left + width))
        left += width + gap
    return {node: placed[node] for node in boxes}, spans


def _lines(
    boxes: Mapping[str, Box], chains: Sequence[_Chain], span: Mapping[str, Span], y: Mapping[str, float]
) -> Iterator[Line]:
    """Yields the lines, each with a port of its own on the sides of its boxes."""
    sides: dict[tuple[str, str], list[tuple[float, int]]] = {}
    ports: dict[tuple[str, int], float] = {}
    for i, (edge, nodes, back) in enumerate(chains):
        if edge.dead and not back:
            ports[nodes[0], i] = y[nodes[0]] + boxes[nodes[0]].height / 2 - 12  # lets the others leave from the middle
        else:
            sides.setdefault((nodes[0], "right"), []).append((y[nodes[1]], i))
        sides.setdefault((nodes[-1], "left"), []).append((y[nodes[-2]], i))
    for (node, _), ends in sides.items():
        half = boxes[node].height / 2 if node in boxes else 0.0
        step = min(PORT_GAP, half / max(len(ends) - 1, 1))
        for rank, (_, i) in enumerate(sorted(ends)):
            ports[node, i] = y[node] + (rank - (len(ends) - 1) / 2) * step
    for i, (edge, nodes, back) in enumerate(chains):
        start, end = ports[nodes[0], i], ports[nodes[-1], i]
        points = [(boxes[nodes[0]].x + boxes[nodes[0]].width / 2, start), (span[nodes[0]][1] + ARROW, start)]
        for node in nodes[1:-1]:
            points += [(span[node][0] - ARROW, y[node]), (span[node][1] + ARROW, y[node])]
        points.append((span[nodes[-1]][0] - ARROW, end))
        joins = nodes[-1] not in boxes
        if not joins:
            points.append((boxes[nodes[-1]].x - boxes[nodes[-1]].width / 2, end))
        yield Line(edge.source, edge.target, edge.dead, tuple(reversed(points) if back else points), joins)
