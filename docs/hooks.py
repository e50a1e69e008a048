"""What the site does to the pages. They are written to be read in a checkout, too, where links lead to its files, the
README comes first, and pictures are Mermaid's text.

mkdocs calls these functions for each page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from pictures import svg

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"^(```\w+) no-run$", re.MULTILINE)
_NAME = re.compile(r"(?<!<pre>)<code>(?:opslog\.)?([A-Z]\w+)</code>(?!</a>)")


def on_startup(**_: object) -> None:
    """The package as it is once installed, where mkdocstrings reads it: four folders of the tree are one package."""
    package = _ROOT / "build" / "package" / "opslog"
    package.mkdir(parents=True, exist_ok=True)
    for path in [*(_ROOT / "opslog").iterdir(), *(_ROOT / name for name in ("backends", "server", "spark"))]:
        if not (package / path.name).exists():
            (package / path.name).symlink_to(path)


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """The first page is the README, then the list of all pages. Links to files of the repository that are no pages
    become their text, with the name of a program beside it. Pictures are drawn here, so that who reads the page needs
    no script and no network for them. The mark of examples that the tests do not run is taken off: the site knows no
    block that begins so, and would take the text below it for code."""
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri == "index.md":
        readme = (_ROOT / "README.md").read_text(encoding="utf-8")
        pages = markdown.partition("\n**")
        markdown = _links(readme.partition("\n## More\n")[0], "..") + f"\n\n## All pages\n{''.join(pages[1:])}"
    return _PICTURE.sub(lambda match: svg(match[1]), _NOT_RUN.sub(r"\1", _links(markdown, folder)))


def _links(markdown: str, folder: str) -> str:
    """The links of a page in `folder`, seen from `docs/`, as links of the site."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target[0] == "#":
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if path == "../README.md":
            path = "index.md"
        path = path.removeprefix("../docs/")
        if path.startswith("../"):
            name = posixpath.basename(path)
            return text if name in text or not name.endswith(".py") else f"{text} (`{name}`)"
        return (
            f"[{text}]({posixpath.relpath(path, '.' if folder in ('', '..') else folder)}{'#' * bool(anchor)}{anchor})"
        )

    return _LINK.sub(link, markdown)


def on_page_content(html: str, *, page: Any, **_: object) -> str:
    """In the reference, the name of a class that has a heading there leads to it."""
    if page.file.src_uri != "reference.md":
        return html
    headings = {place.rpartition(".")[2]: place for place in re.findall(r'id="(opslog\.(?:\w+\.)*[A-Z]\w+)"', html)}

    def link(match: re.Match[str]) -> str:
        place = headings.get(match[1])
        return match[0] if place is None else f'<a href="#{place}">{match[0]}</a>'

    return _NAME.sub(link, html)
