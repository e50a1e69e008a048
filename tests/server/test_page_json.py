"""JSON on the page: values as they are written, and differences between documents."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browsers import complaints_about
from tests.support.servers import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    with serving("--memory") as server:
        yield server.root


@pytest.fixture
def page(browser: Browser, root: str) -> Iterator[Page]:
    """The page as it opens. Tests call its modules."""
    context = browser.new_context()
    page = context.new_page()
    complaints = complaints_about(page, root)
    page.goto(root)
    page.locator("#state", has_text="Live").wait_for()
    yield page
    context.close()
    assert not complaints


DOCUMENTS: list[Any] = [
    {"a": [1, -0.0, 1e300, True, None, "x"], "é\u2028": {"🚀": '"\\\n\t\u0000'}, "": {}, "e": []},
    {"deep": [[[[{"a": [{}]}]]]], "__proto__": {"constructor": 1}, "2": 1, "1": 2},
    {"long": "x" * 200, "list": list(range(100)), "objects": [{"n": n} for n in range(30)]},
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_json_is_read_and_written_as_it_is(page: Page, document: Any) -> None:
    text = json.dumps(document)
    written = page.evaluate(
        """async (text) => {
            const { parse, lines, tokens, coloured } = await import("/page/json.js")
            const flat = (line) => line.map(([, text]) => text).join("")
            return [flat(tokens(parse(text))), lines(parse(text)).map(flat).join("\\n"), flat(coloured(text))]
        }""",
        text,
    )
    for each in written:
        assert list(json.loads(each).items()) == list(document.items())
        assert math.copysign(1, (json.loads(each).get("a") or [0, -0.0])[1]) == -1
    assert written[2] == text


def test_a_string_with_millions_of_escapes_is_read(page: Page) -> None:
    found = page.evaluate(
        """async () => {
            const { parse } = await import("/page/json.js")
            return parse('["' + '\\\\"'.repeat(6_000_000) + '", "\\\\\\\\"]').map((each) => each.length)
        }"""
    )
    assert found == [6_000_000, 1]


@pytest.mark.parametrize("text", ["", "{", '{"a" 1}', "[1,]", "nul", "01x", '"', '"\\', '["a\\"]', "{} {}", '{"a":1,}'])
def test_text_that_is_no_json_is_refused(page: Page, text: str) -> None:
    found = page.evaluate(
        "async (text) => { const { parse } = await import('/page/json.js')\n"
        "  try { parse(text) } catch (error) { return error.name } }",
        text,
    )
    assert found == "SyntaxError"


def test_differences_lead_from_one_document_to_the_other(page: Page) -> None:
    before = {f"f{number}": number for number in range(60)}
    after = {**{name: n for name, n in before.items() if n % 29 != 1}, "f3": "other", "new": [1]}
    old, now, kinds = page.evaluate(
        """async ([before, after]) => {
            const { parse, lines } = await import("/page/json.js")
            const { differences, folded } = await import("/page/diff.js")
            const flat = (line) => line.map(([, text]) => text).join("").replace(/,$/, "")
            const all = differences(lines(parse(before)), lines(parse(after)))
            const of = (...kinds) => all.filter(({ kind }) => kinds.includes(kind)).map(({ line }) => flat(line))
            return [of("same", "removed"), of("same", "added"), folded(all).map(({ kind }) => kind)]
        }""",
        [json.dumps(before), json.dumps(after)],
    )
    for found, document in ((old, before), (now, after)):
        assert [line.strip() for line in found[1:-1]] == [
            f"{json.dumps(k)}: {json.dumps(v)}" for k, v in document.items()
        ]
    assert kinds.count("removed") == 4
    assert kinds.count("added") == 2
    assert "folded" in kinds
