"""Hooks of MkDocs: what pages list is generated, and links lead outside `docs/`, where the site cannot follow."""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docs_reference import fill

ROOT: Final = Path(__file__).resolve().parent.parent
# Files of the repository that pages link to. They become part of the site, below `files/`.
_LINKED: Final = re.compile(r"\]\(\.\./(deploy/[\w.-]+)\)")
# A folder has no page.
_FOLDER: Final = re.compile(r"\[([^]]+)\]\(\.\./\w+/?\)")
_ITEM: Final = re.compile(r"(?P<indent> *)(?:- |\d+\. )")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add what has no fixed list of pages to the navigation: design decisions and the changelog."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    about: list[Any] = [{"Changelog": "changelog.md"}]
    about.append({"Design decisions": [f"decisions/{path.name}" for path in decisions]})
    config.nav = [*(config.nav or []), {"About": about}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, and the files that pages link to."""
    changelog = re.sub(r"\]\(docs/", "](", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "changelog.md", content=changelog))
    for linked in sorted((ROOT / "deploy").iterdir()):
        files.append(File.generated(config, f"files/deploy/{linked.name}", abs_src_path=str(linked)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Generate what a page lists, let its links lead to copies, and give the first page its full width."""
    del config, files
    if page.is_homepage:
        # Not in the page itself, because GitHub would show it.
        page.meta["hide"] = ["navigation", "toc"]
    up = "../" * page.file.src_uri.count("/")
    linked = _FOLDER.sub(r"`\1`", _LINKED.sub(lambda link: f"]({up}files/{link[1]})", markdown))
    return fill(_with_lists(linked))


def _with_lists(markdown: str) -> str:
    """Lists as Python-Markdown reads them: after an empty line, and nested by four spaces. GitHub needs neither."""
    lines: list[str] = []
    in_code, before = False, ""
    for line in markdown.splitlines():
        in_code ^= line.lstrip().startswith("```")
        item = None if in_code else _ITEM.match(line)
        if item and not item["indent"] and before.strip() and not _ITEM.match(before) and before[0] != " ":
            lines.append("")
        lines.append(item["indent"] + line if item else line)
        before = line
    return "\n".join(lines)
