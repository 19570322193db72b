"""The description on a package index: README.md, with links to the repository for the files that only it has.

Everything else is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def describe() -> str:
    """README.md with absolute links in place of relative ones."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    absolute = re.sub(r"!\[([^]]*)\]\((?!https?:)", rf"![\1]({source}/raw/main/", readme)
    return re.sub(r"\]\((?!https?:|mailto:|#)", f"]({source}/blob/main/", absolute)


setup(long_description=describe(), long_description_content_type="text/markdown")
