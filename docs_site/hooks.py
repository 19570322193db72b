"""Hooks of mkdocs: the pages of reference.py, links to the repository, and a check that nothing comes from outside."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from docs_site.outside import fetched_by_page, fetched_by_style, link_to_repository
from docs_site.reference import PAGES

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made from the code, in place of those that a Git host shows."""
    for path, make in PAGES.items():
        files.remove(files.get_file_from_path(path))
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files that only the repository has lead there."""
    return link_to_repository(markdown, page.file.src_uri, SOURCE)


def on_post_build(config: Any) -> None:
    """Refuses a site whose pages or style sheets fetch something from another host."""
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)}: {address}"
        for end, fetched in ((".html", fetched_by_page), (".css", fetched_by_style))
        for path in sorted(site.rglob(f"*{end}"))
        for address in fetched(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("the site fetches from outside: " + "; ".join(found))
