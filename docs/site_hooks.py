"""Hooks of MkDocs: generated pages of the reference, and the documents of the repository's root as pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from reference_pages import build_pages

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Documents of the root, which repository hosts expect there."""
OUTWARDS = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([^)#\s]+)(#[^)\s]*)?\)")
"""A link of a page to a file outside of ``docs/``, or to another of its folders."""
INWARDS = re.compile(r"\]\((docs/)?([^)#:\s]+)(#[^)\s]*)?\)")
"""A link of a document of the root to another file of the repository."""


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that are made for the site."""
    documents = {f"project/{name}": adapt_document((ROOT / name).read_text("utf-8")) for name in PROJECT}
    for path, text in (build_pages() | documents).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let the links of a page that leave ``docs/`` lead to the copies, or to nothing where the site has no copy."""
    depth = page.file.src_uri.count("/")

    def replace(link: re.Match[str]) -> str:
        text, ups, target, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
        if ups.count("../") <= depth or page.file.src_uri.startswith("project/"):
            return link.group(0)
        return f"[{text}]({'../' * depth}project/{target}{anchor})" if target in PROJECT else text

    return OUTWARDS.sub(replace, markdown)


def adapt_document(text: str) -> str:
    """Return a document of the repository's root as a page of the folder ``project``."""

    def replace(link: re.Match[str]) -> str:
        inside, target, anchor = link.groups()
        if inside:
            return f"](../{target}{anchor or ''})"
        return f"]({target if target in PROJECT else '../index.md'}{(anchor or '') if target in PROJECT else ''})"

    return INWARDS.sub(replace, text)
