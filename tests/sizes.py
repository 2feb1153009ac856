"""Lines of each package, and of the tests, which must not grow: `python -m tests.sizes`.

Blank lines and docstrings count. What is generated does not, because nobody keeps it. A package has
the lines of the last landing as its limit, rounded up to STEP: who makes it smaller lowers the
limit with `python -m tests.sizes --lower`, and who must exceed it raises the number by hand and
says why in the commit. The goal is where the limit shall come to.
"""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1] / "zaqar_lite"
GENERATED = "# Generated from "
STEP = 50
"""A repair may add some lines without a word about it."""


class Size(NamedTuple):
    """Lines of a package: what it may have, and what it shall have."""

    limit: int
    goal: int


SIZES = {
    "domain": Size(3_300, 3_000),
    "service": Size(13_850, 11_000),
    "api, server, top level": Size(11_450, 8_800),
    "storage": Size(22_700, 20_800),
    "client": Size(7_400, 7_400),
    "commands": Size(3_200, 3_200),
    "ui": Size(1_850, 1_200),
    "spark": Size(3_200, 3_200),
    "rabbitmq": Size(2_600, 2_600),
    "store": Size(750, 500),
    "sqs": Size(1_600, 1_600),
    "bench, push, openstack": Size(1_700, 1_900),
    "tests": Size(68_200, 48_000),
}
_PACKAGES = {package: name for name in SIZES for package in name.split(", ")}


def package_of(path: Path) -> str:
    """Return the entry of SIZES that a file counts for."""
    return _PACKAGES.get(path.relative_to(ROOT).parts[0], _PACKAGES["top level"])


def sizes() -> dict[str, int]:
    """Count the lines that are kept by hand, of Python, Lua and the page, by package; and tests."""
    found = Counter(dict.fromkeys(SIZES, 0))
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in {".py", ".lua", ".html", ".js", ".css"}:
            text = path.read_text(encoding="utf-8")
            if not text.startswith(GENERATED):
                found[package_of(path)] += len(text.splitlines())
    for path in Path(__file__).parent.rglob("*.py"):
        found["tests"] += len(path.read_text(encoding="utf-8").splitlines())
    return dict(found)


def lower(found: dict[str, int]) -> None:
    """Write the lines of each package that became smaller into this file, as its limit."""
    file = Path(__file__)
    text = file.read_text(encoding="utf-8")
    for name, lines in found.items():
        limit = min(-(-lines // STEP) * STEP, SIZES[name].limit) if lines else SIZES[name].limit
        text = re.sub(rf'("{name}": Size\()[\d_]+', rf"\g<1>{limit:_}", text)
    file.write_text(text, encoding="utf-8")


def main() -> int:
    """Print the table; answer 1 where a package is above its limit."""
    found = sizes()
    print(f"{'package':24} {'lines':>7} {'limit':>7} {'goal':>7}")
    for name, (limit, goal) in SIZES.items():
        over = "  above its limit" if found[name] > limit else ""
        print(f"{name:24} {found[name]:7,} {limit:7,} {goal:7,}{over}")
    goal = sum(size.goal for name, size in SIZES.items() if name != "tests")
    print(f"{'all but tests':24} {sum(found.values()) - found['tests']:7,} {'':7} {goal:7,}")
    if "--lower" in sys.argv[1:]:
        lower(found)
    return int(any(found[name] > size.limit for name, size in SIZES.items()))


if __name__ == "__main__":
    sys.exit(main())
