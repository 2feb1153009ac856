"""Make the sync half of the SDK from the async one: `python -m tests.generate_sync`.

The modules of `zaqar_lite/client/asynchronous` are written by hand. All of them but `runtime`,
which holds what the two halves do differently, are translated word for word into
`zaqar_lite/client/sync` and put into form by ruff. A test compares the result with what is
committed.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "zaqar_lite" / "client"
BY_HAND = {"__init__", "runtime"}

_RULES = [
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\bAsyncSchedules\b", "SyncSchedules"),
        (r"\bAsyncCalls\b", "SyncCalls"),
        (r"\bAsync\b", "Sync"),
        (r"\baiohttp_transport\b", "urllib3_transport"),
        (r"\bAiohttpTransport\b", "Urllib3Transport"),
        (r"\bIterable\[(\w+)\] \| AsyncIterable\[\1\]", r"Iterable[\1]"),
        (r"\bAsync(Claim|Client|Generator|Iterable|Iterator|Transport)\b", r"\1"),
        (r"__a(enter|exit|iter|next)__", r"__\1__"),
        (r"\bclient\.asynchronous\b", "client.sync"),
        (r"\bpost_all_async\b", "post_all"),
        (r"\b([Tt]he|whole) async client\b", r"\1 sync client"),
        (r"\bfor one event loop after another: ", "which threads may share: "),
        (r"\ban `with`", "a `with`"),
        (r"on an event loop\b", "in the caller's thread"),
    )
]
_HEADER = "# Generated from asynchronous/{} by tests/generate_sync.py; change it there.\n"


def sources() -> list[Path]:
    """Return the modules that are translated."""
    found = sorted((CLIENT / "asynchronous").glob("*.py"))
    return [path for path in found if path.stem not in BY_HAND]


def generate(source: Path) -> str:
    """Return the sync text of an async module."""
    text = source.read_text(encoding="utf-8")
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    target = CLIENT / "sync" / source.name
    # Imports that became useless or equal go, the rest is put in order.
    fixed = _ruff("check", "--quiet", "--fix-only", "--select=F401,F811,I", name=target, text=text)
    return _HEADER.format(source.name) + _ruff("format", "--quiet", name=target, text=fixed)


def _ruff(*words: str, name: Path, text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), *words, "--stdin-filename", str(name), "-"]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main() -> None:
    """Write the sync modules."""
    for source in sources():
        (CLIENT / "sync" / source.name).write_text(generate(source), encoding="utf-8")


if __name__ == "__main__":
    main()
