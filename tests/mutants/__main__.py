"""Plant one-token changes by seed, and print those that no test notices.

    python -m tests.mutants --record
    python -m tests.mutants --count 200 --seed 22
    python -m tests.mutants --count 200 --seed 22 --only 41-80
    python -m tests.mutants --count 60 --without tests/api/test_queues.py

It works in a copy of the checkout. A change is caught when a test fails or does not end in time.
`EXPLAINED` are changes that were looked at and change nothing that anybody can see.

With `--without` it tells whether some tests could go: the changes are drawn from what those tests
enter, and each one that they notice must be noticed by a test that stays.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from tests.mutants.changes import Change, find
from tests.mutants.covering import DRIVERS, PARTS, RECORDINGS, ROOT, Covering, Part
from tests.mutants.explained import EXPLAINED
from tests.mutants.running import NO_ANSWER, Warm

LINKED = (".venv", ".cache")
RECORDED = ROOT / ".cache" / "mutants"
_RECORDER = ("-p", "tests.mutants.recording")
PATIENCE = 90
"""Seconds for a run of tests beyond four times those that were recorded: a change may hang them."""


def candidates(part: Part) -> list[Change]:
    """Find every change of a part."""
    return [
        change
        for path in sorted((ROOT / part.folder).rglob("*"))
        if path.suffix in part.suffixes
        for change in find(str(path.relative_to(ROOT)), path.read_bytes())
    ]


def sample(changes: Sequence[Change], seed: int, count: int) -> list[Change]:
    """Choose changes by a seed: the same ones while their lines stay, whatever else changes."""
    seen: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for change in changes:
        told = (change.path, change.text, str(change.column), change.new)
        seen[told] += 1
        ranked.append((sha256(f"{seed} {told} {seen[told]}".encode()).digest(), change))
    return [change for _, change in sorted(ranked)[:count]]


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
        if (ROOT / name).exists() and not (place / name).exists():
            (place / name).symlink_to((ROOT / name).resolve())


def record(home: Path) -> int:
    """Run the tests once, and record what they enter."""
    home.mkdir(parents=True, exist_ok=True)
    failed = 0
    for recording in RECORDINGS:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *_RECORDER, *recording.arguments],
            cwd=ROOT,
            env=os.environ
            | {
                "ZAQAR_TEST_RECORD": str(home / f"{recording.name}.json"),
                "ZAQAR_TEST_DRIVERS": recording.drivers,
                "PYTHONPATH": str(ROOT),
            },
            check=False,
        )
        failed += done.returncode != 0
    return failed


@contextmanager
def planted(change: Change, number: int) -> Iterator[None]:
    """Plant a change, and take it back, here and not in a fork."""
    process = os.getpid()
    target = ROOT / change.path
    source, status = target.read_bytes(), target.stat()
    target.write_bytes(change.planted(source))
    # Compiled files are kept by size and second of change: each change has a second of its own.
    os.utime(target, (status.st_mtime + number, status.st_mtime + number))
    try:
        yield
    finally:
        if os.getpid() == process:
            target.write_bytes(source)
            os.utime(target, (status.st_atime, status.st_mtime))


class Planting:
    """Plants one change after the other, and counts."""

    def __init__(
        self, portion: Sequence[tuple[int, Change]], covering: Covering, without: Sequence[str]
    ) -> None:
        self._portion = portion
        self._covering = covering
        self._without = without
        self._explained = self._unasked = 0
        self.living: list[Change] = []

    def work(self, session: Warm) -> None:
        """Plant all, print what becomes of each, and the sum."""
        for number, change in self._portion:
            if reason := EXPLAINED.get((change.path, change.text, change.new)):
                self._explained += 1
                print(f"{number:3} equal   {change}: {reason}", flush=True)
                continue
            began = time.monotonic()
            with planted(change, number):
                asked = not self._without or self._is_noticed_by_who_leaves(session, change)
                noticed = self._noticing(session, change) if asked else ""
            if not asked:
                self._unasked += 1
                print(f"{number:3} unasked {change}: those tests do not notice it", flush=True)
                continue
            seconds = time.monotonic() - began
            verdict = f"caught  {change}  ({seconds:.0f} s, {noticed})"
            print(f"{number:3}", verdict if noticed else f"LIVES   {change}", flush=True)
            self.living += [] if noticed else [change]
        caught = len(self._portion) - self._explained - self._unasked - len(self.living)
        figures = f"{caught} caught, {self._explained} explained, {len(self.living)} living"
        figures += f", {self._unasked} unasked" if self._without else ""
        print(f"{len(self._portion)} planted: {figures}", *self.living, sep="\n  ", flush=True)

    def _is_noticed_by_who_leaves(self, session: Warm, change: Change) -> bool:
        """Whether one of the tests that might go notices a change."""
        leaving = [test for test in self._covering.covering(change) if test.is_of(self._without)]
        patience = PATIENCE + 4 * sum(test.seconds for test in leaving)
        return bool(session.failing([test.name for test in leaving], change, patience))

    def _noticing(self, session: Warm, change: Change) -> str:
        """Run the tests that cover a change until one notices it; return its name, or ""."""
        for stage in self._covering.stages(change, self._without):
            patience = PATIENCE + 4 * sum(test.seconds for test in stage)
            names = [test.name for test in stage]
            failed = session.failing(names, change, patience)
            if failed == NO_ANSWER:  # also a busy machine may be why
                failed = session.failing(names, change, patience)
            if failed:
                return failed
        return ""


def main() -> int:
    """Run by the command line; the exit code is 1 where fewer than the wanted share are caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [part.name for part in PARTS]
    parser.add_argument("part", nargs="*", help=f"only those of {', '.join(names)} (all)")
    parser.add_argument("--record", action="store_true", help="record what each test covers")
    parser.add_argument("--count", type=int, default=200, help="changes to plant (200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--only", default="", help="a portion of them, as 7 or 41-80 (all)")
    parser.add_argument("--share", type=float, default=0.95, help="share to be caught (0.95)")
    parser.add_argument("--without", nargs="+", default=[], help="files or tests that might go")
    parser.add_argument("--here", action="store_true", help="plant in this checkout, not in a copy")
    words = parser.parse_args()
    if words.record:
        return record(RECORDED)
    if unknown := set(words.part) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not words.here:
        with tempfile.TemporaryDirectory(prefix="zaqar-mutants-") as home:
            copy_to(Path(home))
            again = [sys.executable, "-m", "tests.mutants", *sys.argv[1:], "--here"]
            environment = os.environ | {
                "PYTHONPATH": home,
                "ZAQAR_TEST_DRIVERS": DRIVERS,
                "CI": "1",
            }
            return subprocess.run(again, cwd=home, env=environment, check=False).returncode
    every = [change for part in PARTS for change in candidates(part)]
    for path, text, _ in set(EXPLAINED) - {(each.path, each.text, each.new) for each in every}:
        print(f"explained, but no longer in {path}: {text}", flush=True)
    first, _, last = (words.only or f"1-{words.count}").partition("-")
    folders = tuple(f"{part.folder}/" for part in PARTS if part.name in (words.part or names))
    covering = Covering(RECORDED)
    if words.without:
        every = [change for change in every if covering.is_entered(change, words.without)]
    portion = [
        (number, change)
        for number, change in enumerate(sample(every, words.seed, words.count), 1)
        if int(first) <= number <= int(last or first) and change.path.startswith(folders)
    ]
    planting = Planting(portion, covering, words.without)
    paths = dict.fromkeys(path for recording in RECORDINGS for path in recording.paths)
    Warm(ROOT, ROOT / "log", planting.work).run(list(paths))
    return 0 if len(planting.living) <= words.count * (1 - words.share) else 1


if __name__ == "__main__":
    sys.exit(main())
