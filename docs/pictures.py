"""Pictures of graphs, drawn when the site is built: Mermaid's text in, SVG out, so that a page that shows one needs
neither a script nor a network. Pure.

It knows what these pages use: `flowchart TD`, edges `a --> b`, and nodes `a`, `a["a text"]` or `a["name: a text"]`,
which takes two lines. Anything else is an error.

The drawing is in layers (Sugiyama, Tagawa and Toda, 1981). Every edge leads down. One that passes a layer has a *bend*
there, which is placed like a node and has no size. Nodes of a layer are sorted by the mean place of their neighbours,
and the order in which the fewest edges cross is taken. Then each node goes as near to its neighbours as the others
allow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

CHARACTER, PADDING, LINE = 7.0, 20.0, 18.0  # of a node: a letter, what is around the text, a line; in pixels
GAP, BETWEEN, MARGIN = 14.0, 40.0, 2.0  # between neighbours, between layers, around it all
SWEEPS = 24

_NODE = r'(\w+)(?:\["([^"]*)"\])?'
_EDGE = re.compile(rf"\s*{_NODE}\s*-->\s*{_NODE}\s*")

Edge = tuple[str, str]
Layers = list[list[str]]


@dataclass
class Graph:
    """`texts`: by key, in the order of their first mention."""

    texts: dict[str, str]
    edges: list[Edge]


def parse(source: str) -> Graph:
    """:raises ValueError: a line is not understood."""
    first, *lines = source.strip().splitlines()
    if first.strip() != "flowchart TD":
        raise ValueError(f"a picture begins with 'flowchart TD', not with {first!r}")
    graph = Graph({}, [])
    for line in lines:
        found = _EDGE.fullmatch(line)
        if found is None:
            raise ValueError(f"not understood in a picture: {line.strip()!r}")
        for key, text in (found.group(1, 2), found.group(3, 4)):
            graph.texts[key] = text or graph.texts.get(key, key)
        graph.edges.append((found[1], found[3]))
    return graph


def svg(source: str) -> str:
    """The picture as an element of HTML, without empty lines, as Markdown needs it."""
    graph = parse(source)
    layers, chains = _layers(graph)
    texts = {key: text.split(": ", 1) for key, text in graph.texts.items()}
    widths = {key: CHARACTER * max(map(len, lines)) + PADDING for key, lines in texts.items()}
    tall = LINE * max(map(len, texts.values())) + LINE / 2
    _order(layers, chains)
    xs = _places(layers, chains, widths)
    ys = {key: MARGIN + number * (tall + BETWEEN) for number, layer in enumerate(layers) for key in layer}
    left = min(xs[key] - widths.get(key, 0) / 2 for key in xs) - MARGIN
    width = max(xs[key] + widths.get(key, 0) / 2 for key in xs) + MARGIN - left
    height = max(ys.values()) + tall + MARGIN
    label = escape("; ".join(f"{graph.texts[a]} → {graph.texts[b]}" for a, b in graph.edges))
    lines = [
        f'<div class="picture" tabindex="0"><svg viewBox="{left:.0f} 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' style="min-width:{width * 0.72:.0f}px" role="img" aria-label="{label}">'
    ]
    for chain in chains:
        lines.append(_line([(xs[key], ys[key]) for key in chain], tall))
    for key, parts in texts.items():
        x, y, wide = xs[key], ys[key], widths[key]
        lines.append(f'<rect x="{x - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="5"/>')
        first = y + tall / 2 - LINE * (len(parts) - 1) / 2
        spans = [
            f'<tspan x="{x:.1f}" y="{first + LINE * number:.1f}">{escape(part)}</tspan>'
            for number, part in enumerate(parts)
        ]
        lines.append(f"<text>{''.join(spans)}</text>")
    return "\n".join([*lines, "</svg></div>"])


def _line(points: Sequence[tuple[float, float]], tall: float) -> str:
    """A curve down through the points, with an arrow at its end, and straight through each bend."""
    (x, y), *rest = points
    y += tall
    path = [f"M{x:.1f},{y:.1f}"]
    for number, (right, down) in enumerate(rest, start=1):
        end = down - 7 if number == len(rest) else down
        middle = (y + end) / 2
        path.append(f"C{x:.1f},{middle:.1f} {right:.1f},{middle:.1f} {right:.1f},{end:.1f}")
        x, y = right, end
        if number < len(rest):
            y += tall
            path.append(f"V{y:.1f}")
    return f'<path d="{" ".join(path)}"/><path class="arrow" d="M{x - 4:.1f},{y:.1f} h8 l-4,7 z"/>'


def _layers(graph: Graph) -> tuple[Layers, list[list[str]]]:
    """The nodes and bends of each layer, and for each edge the way from its beginning over its bends to its end."""
    below: dict[str, set[str]] = {key: set() for key in graph.texts}
    above: dict[str, set[str]] = {key: set() for key in graph.texts}
    for a, b in graph.edges:
        below[a].add(b)
        above[b].add(a)
    rank: dict[str, int] = {}
    waiting = list(graph.texts)
    while waiting:
        free = [key for key in waiting if above[key] <= rank.keys()]
        if not free:
            raise ValueError(f"these edges form a circle: {waiting}")
        rank |= {key: max((rank[other] + 1 for other in above[key]), default=0) for key in free}
        waiting = [key for key in waiting if key not in rank]
    for key in sorted(rank, key=lambda key: -rank[key]):
        if len(below[key]) > len(above[key]):  # nearer to those below, its edges are shorter in all
            rank[key] = min(rank[other] for other in below[key]) - 1
    layers: Layers = [[] for _ in range(max(rank.values()) + 1)]
    for key in graph.texts:
        layers[rank[key]].append(key)
    chains = []
    for number, (a, b) in enumerate(graph.edges):
        bends = [(f"{number}:{layer}", layer) for layer in range(rank[a] + 1, rank[b])]
        for bend, layer in bends:
            layers[layer].append(bend)
        chains.append([a, *(bend for bend, _ in bends), b])
    return layers, chains


def _neighbours(chains: list[list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for chain in chains:
        for a, b in pairwise(chain):
            below.setdefault(a, []).append(b)
            above.setdefault(b, []).append(a)
    return above, below


def _order(layers: Layers, chains: list[list[str]]) -> None:
    """Sort each layer by the mean place of its neighbours, down and up again, and keep the best order found."""
    above, below = _neighbours(chains)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below)
    for sweep in range(SWEEPS):
        near, numbers = (below, range(len(layers) - 2, -1, -1)) if sweep % 2 else (above, range(1, len(layers)))
        for number in numbers:
            others = layers[number + 1 if sweep % 2 else number - 1]
            place = {key: float(index) for index, key in enumerate(others)}
            here = {key: float(index) for index, key in enumerate(layers[number])}
            mean = {
                key: sum(place[other] for other in near[key]) / len(near[key]) if near.get(key) else here[key]
                for key in layers[number]
            }
            layers[number].sort(key=lambda key: mean[key])
        crossings = _crossings(layers, below)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(layers: Layers, below: dict[str, list[str]]) -> int:
    count = 0
    for upper, lower in pairwise(layers):
        place = {key: index for index, key in enumerate(lower)}
        ends = [place[other] for key in upper for other in sorted(below.get(key, []), key=lambda other: place[other])]
        count += sum(a > b for index, a in enumerate(ends) for b in ends[index + 1 :])
    return count


def _places(layers: Layers, chains: list[list[str]], widths: dict[str, float]) -> dict[str, float]:
    """Where the middle of each node and bend is."""
    above, below = _neighbours(chains)
    xs: dict[str, float] = {}
    for layer in layers:
        x = 0.0
        for key in layer:
            xs[key] = x + widths.get(key, 0) / 2
            x += widths.get(key, 0) + GAP
        for key in layer:
            xs[key] -= x / 2
    for sweep in range(3 * SWEEPS):
        for layer in layers if sweep % 2 else layers[::-1]:
            wanted, weights = [], []
            for key in layer:
                near = [*above.get(key, []), *below.get(key, [])]
                # A long edge is to be straight: its bends hold more to each other than to nodes.
                weight = {other: 6.0 if key not in widths and other not in widths else 1.0 for other in near}
                total = sum(weight.values())
                wanted.append(sum(xs[other] * weight[other] for other in weight) / total if total else xs[key])
                weights.append(max(total, 1.0))
            sizes = [widths.get(key, 0.0) for key in layer]
            xs |= zip(layer, _apart(wanted, weights, sizes), strict=True)
    return xs


def _apart(wanted: list[float], weights: list[float], sizes: list[float]) -> list[float]:
    """The places nearest to those wanted, by the sum of squares, at which neighbours do not touch. Without the sizes in
    between, that is isotonic regression: neighbours in the wrong order meet at their mean."""
    offsets = [0.0]
    for a, b in pairwise(sizes):
        offsets.append(offsets[-1] + (a + b) / 2 + GAP)
    blocks: list[tuple[float, float, int]] = []  # the mean, its weight, and how many
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        block = (want - offset, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, other, count = blocks.pop()
            total = other + block[1]
            block = ((mean * other + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    means = [mean for mean, _, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
