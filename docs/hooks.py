"""What the site does to the pages: they are written to be read in a checkout, too, where links lead to its files.

mkdocs calls `on_page_markdown` for each page.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Links to files of the repository that are no pages become their text; the README is the page `index.md`."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0])) if target[0] != "#" else ""
        if "://" in target or not path.startswith("../"):
            return match[0]
        return f"[{text}]({posixpath.relpath('index.md', folder or '.')})" if path == "../README.md" else text

    return _LINK.sub(link, markdown)
