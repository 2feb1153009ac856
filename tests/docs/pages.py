"""The blocks of code in a page of Markdown or reStructuredText."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SOURCE = ROOT / "api-ref" / "source"
URL = "http://127.0.0.1:8888"

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^\.\. code-block:: (\w+)\n(?:   :.*\n)*\n((?:   .*\n|\n)+)", re.MULTILINE)


class Block(NamedTuple):
    """A block, without its indentation, and the language that it says it has."""

    language: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Return the blocks of a page in its order, all or those of a language."""
    text = page.read_text(encoding="utf-8")
    pattern = _FENCED if page.suffix == ".md" else _DIRECTIVE
    found = [Block(match[1], textwrap.dedent(match[2])) for match in pattern.finditer(text)]
    return [block for block in found if language in (None, block.language)]


def commands(page: Path) -> list[str]:
    """Return what a page types at the prompt of a console."""
    lines = [line for block in blocks(page, "console") for line in block.text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
