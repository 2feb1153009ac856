"""Lines of each package against its budget: `python -m tests.sizes`.

Blank lines and docstrings count. What is generated does not, because nobody keeps it. A change that
exceeds a budget says why in its commit.
"""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "zaqar_lite"
GENERATED = "# Generated from "

BUDGETS = {
    "domain": 1_900,
    "service": 4_000,
    "api": 3_800,
    "storage": 700,
    "storage/memory": 1_300,
    "storage/redis": 3_600,
    "storage/mongodb": 2_300,
    "storage/swift": 3_000,
    "storage/opendata": 5_500,
    "client": 3_900,
    "commands": 1_900,
    "ui": 1_800,
    "spark": 3_000,
    "rabbitmq": 3_000,
    "openstack, bench, top level": 1_900,
}
TOTAL = 41_600
_REST = "openstack, bench, top level"


def package_of(path: Path) -> str:
    """Return the budget that a file counts for."""
    parts = path.relative_to(ROOT).parts
    name = "/".join(parts[:2]) if parts[0] == "storage" and len(parts) > 2 else parts[0]
    return name if name in BUDGETS else _REST


def sizes() -> dict[str, int]:
    """Count the lines that are kept by hand, of Python and of Lua, by budget."""
    found: Counter[str] = Counter()
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in {".py", ".lua", ".html", ".js", ".css"}:
            text = path.read_text(encoding="utf-8")
            if not text.startswith(GENERATED):
                found[package_of(path)] += len(text.splitlines())
    return dict(found)


def main() -> int:
    """Print the table; answer 1 when a budget is exceeded and `--strict` was given."""
    found = sizes()
    print(f"{'package':30} {'lines':>7} {'budget':>7} {'over':>7}")
    for name, budget in BUDGETS.items():
        lines = found.get(name, 0)
        over = f"{lines - budget:+7,}" if lines > budget else ""
        print(f"{name:30} {lines:7,} {budget:7,} {over:>7}")
    total = sum(found.values())
    over = f"{total - TOTAL:+7,}" if total > TOTAL else ""
    print(f"{'all':30} {total:7,} {TOTAL:7,} {over:>7}")
    exceeded = any(found.get(name, 0) > budget for name, budget in BUDGETS.items())
    return int("--strict" in sys.argv[1:] and exceeded)


if __name__ == "__main__":
    sys.exit(main())
