"""Pictures are drawn as described, and are readable: nodes do not touch, and edges lead down."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.support.documents import ROOT, blocks


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/pictures.py, which is in no package: mkdocs loads it."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pictures", module)  # dataclasses search for it there
    spec.loader.exec_module(module)
    return module


def nodes(drawing: str) -> dict[str, tuple[float, float, float]]:
    """The position of each node by its text: the left edge, the height, and the width."""
    root = ElementTree.fromstring(drawing)
    texts = [": ".join(part.text or "" for part in node) for node in root.iter("text")]
    boxes = [tuple(float(node.attrib[name]) for name in ("x", "y", "width")) for node in root.iter("rect")]
    return dict(zip(texts, boxes, strict=True))  # type: ignore[arg-type]


def shown(drawing: str) -> str:
    return str(ElementTree.fromstring(drawing)[0].attrib["aria-label"])


def check(drawing: str, edges: list[tuple[str, str]]) -> None:
    boxes = nodes(drawing)
    assert {*boxes} == {text for edge in edges for text in edge}
    assert shown(drawing) == "; ".join(f"{a} → {b}" for a, b in edges)
    assert drawing.count('class="arrow"') == len(edges)
    assert all(boxes[a][1] < boxes[b][1] for a, b in edges), "an edge leads up"
    for a, (x, y, width) in boxes.items():
        touching = [b for b, (other, row, _) in boxes.items() if a != b and row == y and x <= other < x + width + 1]
        assert not touching, f"{a} touches {touching}"
    assert "\n\n" not in drawing, "Markdown would end the picture there"


@pytest.mark.parametrize("seed", range(40))
def test_any_graph_can_be_drawn(pictures: ModuleType, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(chance.randint(2, 25))]
    chosen = {tuple(sorted(chance.sample(range(len(names)), 2))) for _ in range(chance.randint(1, 40))}
    edges = [(names[a], names[b]) for a, b in chosen]
    lines = [f'    {a}["{a} & <{a}>"] --> {b}["{b} & <{b}>"]' for a, b in edges]
    check(pictures.svg("\n".join(["flowchart TD", *lines])), [(f"{a} & <{a}>", f"{b} & <{b}>") for a, b in edges])


def test_the_pictures_of_the_pages_can_be_drawn(pictures: ModuleType) -> None:
    sources = [
        block.text for path in (ROOT / "docs").rglob("*.md") for block in blocks(path) if block.language == "mermaid"
    ]
    assert len(sources) >= 4
    for source in sources:
        graph = pictures.parse(source)
        check(pictures.svg(source), [(graph.texts[a], graph.texts[b]) for a, b in graph.edges])


def test_edges_that_need_not_cross_do_not(pictures: ModuleType) -> None:
    graph = pictures.parse("flowchart TD\na --> x\na --> y\nb --> z\nb --> w\nc --> v\nx --> v2\nc --> w2")
    layers, chains = pictures._layers(graph)
    for layer in layers:
        layer.sort(key=lambda key: re.sub(r"\W", "", key[::-1]))
    pictures._order(layers, chains)
    assert pictures._crossings(layers, pictures._neighbours(chains)[1]) == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("flowchart LR\na --> b", "begins with 'flowchart TD'"),
        ("flowchart TD\na -.-> b", "not understood in a picture: 'a -.-> b'"),
        ("flowchart TD\na --> b\nb --> a", "form a circle"),
    ],
)
def test_unknown_syntax_is_an_error(pictures: ModuleType, source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pictures.svg(source)
