"""Record the README's picture from a real session: `python -m tests.record_terminal`.

It starts a server, runs the commands below on a terminal of 110 columns, and writes what that
showed, with its colours, as an SVG.
"""

import html
import io
import re
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.commands.running import on_a_terminal
from tests.server import ServerProcess
from zaqar_lite.client import Client

PICTURE = Path(__file__).parents[1] / "api-ref" / "source" / "_static" / "terminal.svg"
COLUMNS = 110
COMMANDS = (
    "zaqar-lite queue create mails --max-failures 1 --dead-letter-queue lost",
    """zaqar-lite message post mails '{"to": "ada"}' '{"to": "grace"}'""",
    "zaqar-lite queue stats mails",
    "zaqar-lite dlq list lost",
    "zaqar-lite dlq redrive lost",
)
FAILING = "zaqar-lite dlq list lost"
"""Before this command a worker has failed with one of the messages."""


def session(url: str) -> Text:
    """Run the commands against a server; return what the terminal showed."""
    shown = Text()
    for command in COMMANDS:
        if command == FAILING:
            _fail(url)
        shown.append(f"$ {command}\n", style="bold")
        shown.append_text(Text.from_ansi(_run(command, url)))
        shown.append("\n")
    return shown


def picture(shown: Text) -> str:
    """Draw a session."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(shown)
    drawn = console.export_svg(title="zaqar-lite", unique_id="terminal")
    # Rich names a font on somebody's server; whoever looks has a monospaced one.
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def text_of(drawn: str) -> str:
    """Return the text of a picture, line by line."""
    lines = ("".join(re.findall(r">([^<]*)</text>", line)) for line in drawn.splitlines())
    return html.unescape("\n".join(filter(None, lines))).replace("\xa0", " ")


def _fail(url: str) -> None:
    with Client(url) as client, client.claim("mails", limit=1) as claim:
        for message in claim:
            claim.dead(message, reason="no_recipient", detail="the address bounces")


def _run(command: str, url: str) -> str:
    words = [sys.executable, "-m", "zaqar_lite.cli", *shlex.split(command)[1:], "--url", url]
    return on_a_terminal(words, columns=COLUMNS, colours=True)


def main() -> None:
    """Record and write the picture."""
    with ServerProcess("memory://") as server:
        drawn = picture(session(server.url))
    PICTURE.write_text(drawn, encoding="utf-8")
    print(f"{PICTURE}: {len(drawn):,} characters")


if __name__ == "__main__":
    main()
