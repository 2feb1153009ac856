"""Make the sync client of the SDK from the async one: `python -m tests.generate_sync`.

Methods are written once, as steps. Only what is left, the modules `async_*.py` of the client, is
translated word for word into `sync_*.py` and put into form by ruff. A test compares the result
with what is committed.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "zaqar_lite" / "client"
TARGETS = (CLIENT / "sync_runner.py", CLIENT / "sync_client.py")

_RULES = [
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\bAsyncSchedules\b", "SyncSchedules"),
        (r"\bAsync(|Part|Runner)\b", r"Sync\1"),
        (r"\basync_runner\b", "sync_runner"),
        (r"\btake_async\b", "take"),
        (r"for item in page\.items:\n\s+yield item", "yield from page.items"),
        (r"\bAsyncGenerator\[T, None\]", "Generator[T, None, None]"),
        (r"\baiohttp_transport\b", "urllib3_transport"),
        (r"\bAiohttpTransport\b", "Urllib3Transport"),
        (r"\bIterable\[(\w+)\] \| AsyncIterable\[\1\]", r"Iterable[\1]"),
        (r"\bAsync(Claim|Client|Generator|Iterable|Iterator)\b", r"\1"),
        (r"__a(enter|exit|iter|next)__", r"__\1__"),
        (r"\bpost_all_async\b", "post_all"),
        (r"\b([Tt]he|whole) async client\b", r"\1 sync client"),
        (r"\bfor one event loop after another: ", "which threads may share: "),
        (r"\ban `with`", "a `with`"),
        (r"on an event loop\b", "in the caller's thread"),
    )
]
_HEADER = "# Generated from {} by tests/generate_sync.py; change it there.\n"


def generate(target: Path) -> str:
    """Return the text of a module of the sync client."""
    source = target.with_name(f"a{target.name}")
    text = source.read_text(encoding="utf-8")
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    # Imports that became useless or equal go, the rest is put in order.
    fixed = _ruff("check", "--quiet", "--fix-only", "--select=F401,F811,I", of=target, text=text)
    return _HEADER.format(source.name) + _ruff("format", "--quiet", of=target, text=fixed)


def _ruff(*words: str, of: Path, text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), *words, "--stdin-filename", str(of), "-"]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    for one in TARGETS:
        one.write_text(generate(one), encoding="utf-8")
