"""Plant one-token changes by seed, and print those that no test notices.

    python -m tests.mutants --count 40 --seed 7 domain service redis

It works in a copy of the checkout. A change is caught when a test fails or does not end in time.
`EXPLAINED` are changes that were looked at and change nothing that anybody can see.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.changes import Change, find
from tests.mutants.covering import PARTS, Part, Stage, nearest
from tests.mutants.explained import EXPLAINED

ROOT = Path(__file__).parents[2]
LINKED = (".venv", ".cache")
PATIENCE = 600
"""Seconds for one stage; a change that makes the tests hang is caught."""


def candidates(part: Part) -> list[Change]:
    """Find every change of a part."""
    return [
        change
        for folder in part.folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in part.suffixes
        for change in find(str(path.relative_to(ROOT)), path.read_bytes())
    ]


def copy_to(place: Path) -> None:
    """Copy what the tests need; the environments are shared."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    for name in LINKED:
        (place / name).symlink_to((ROOT / name).resolve())


def passes(place: Path, stage: Stage) -> bool:
    """Run a stage in the copy; whether everything passed."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*words, *stage.arguments],
            cwd=place,
            env={**stage.environment, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def lives(place: Path, change: Change, stages: Sequence[Stage]) -> bool:
    """Plant a change, run the stages until one notices it, and take it back."""
    target = place / change.path
    source = target.read_bytes()
    target.write_bytes(change.planted(source))
    try:
        return all(passes(place, stage) for stage in stages)
    finally:
        target.write_bytes(source)


def main() -> int:
    """Run by the command line; the exit code is 1 where fewer than the wanted share are caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [part.name for part in PARTS]
    parser.add_argument("part", nargs="*", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--count", type=int, default=200, help="changes to plant (200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--share", type=float, default=0.95, help="share to be caught (0.95)")
    words = parser.parse_args()
    chosen = [part for part in PARTS if part.name in (words.part or names)]
    if unknown := set(words.part) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    pairs = [(change, part) for part in chosen for change in candidates(part)]
    sample = random.Random(words.seed).sample(pairs, min(words.count, len(pairs)))
    living: list[Change] = []
    explained = 0
    with tempfile.TemporaryDirectory(prefix="zaqar-mutants-") as home:
        place = Path(home)
        copy_to(place)
        for change, part in sample:
            if reason := EXPLAINED.get((change.path, change.text, change.new)):
                explained += 1
                print(f"equal    {change}: {reason}", flush=True)
                continue
            began = time.monotonic()
            is_living = lives(place, change, [*nearest(change.path), *part.stages])
            living += [change] if is_living else []
            verdict = "LIVES" if is_living else "caught"
            print(f"{verdict:8} {change}  ({time.monotonic() - began:.0f} s)", flush=True)
    tried = len(sample) - explained
    print(f"{tried - len(living)} of {tried} caught; living:", *living, sep="\n  ")
    return 0 if len(living) <= tried * (1 - words.share) else 1


if __name__ == "__main__":
    sys.exit(main())
