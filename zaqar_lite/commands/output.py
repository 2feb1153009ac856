"""What a command prints: tables on a terminal, JSON lines in a pipe or with --json, retries."""

import dataclasses
import datetime as dt
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zaqar_lite.commands import sdk
from zaqar_lite.durations import duration_shown

# A table needs its rows in memory to align them, so a long listing is several tables.
ROWS_PER_TABLE = 500

CLEAR = "\r\x1b[K"
DURATIONS = frozenset({"age", "ttl", "grace", "oldest_age", "delay"})


class Output:
    """Standard output, in one of two forms that have the same facts."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json or not sys.stdout.isatty()

    def rows(
        self,
        rows: Iterable[Mapping[str, object]],
        columns: Sequence[str],
        *,
        empty: str | Callable[[], str] = "",
    ) -> None:
        """Print rows; a table shows only `columns` in which something stands, JSON everything.

        On a terminal, `empty` is printed if there are no rows.
        """
        if self.as_json:
            for row in rows:
                print(_encoded(row))
            return
        iterator = iter(rows)
        while part := list(itertools.islice(iterator, ROWS_PER_TABLE)):
            self._draw(part, columns)
            empty = ""
        if text := empty if isinstance(empty, str) else empty():
            self.say(text)

    def record(self, record: Mapping[str, object]) -> None:
        """Print one thing."""
        if self.as_json:
            print(_encoded(record))
            return
        self._draw([record])

    @staticmethod
    def _draw(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> None:
        """Draw a table, or the fields of a record where no columns are given."""
        from rich.console import Console  # noqa: PLC0415 - a pipe never needs rich

        from zaqar_lite.commands import tables  # noqa: PLC0415

        console, texts = Console(), shown(rows)
        if columns is None:
            console.print(tables.fields(texts, list(rows[0]), console))
        else:
            console.print(tables.table(texts, columns, console))

    def line(self, text: str) -> None:
        """Print a line above a table; in JSON the rows have the same facts as fields."""
        if not self.as_json:
            print(printable(text))

    def say(self, text: str) -> None:
        """Tell a person at a terminal, and no pipe."""
        if not self.as_json:
            print(text, file=sys.stderr)


def as_row(value: Any) -> dict[str, object]:  # noqa: ANN401 - what the SDK returns
    """Return a dict as it is, and of a dataclass the fields that have a value.

    The fields of a message's dead letter stand beside the message's own. Its `claim_count` is
    called `claims`, as in `dlq count`, because the message has one too and goes on counting.
    """
    if isinstance(value, Mapping):
        return dict(value)
    fields: dict[str, object] = dataclasses.asdict(value)
    letter = fields.pop("dead_letter", None)
    if isinstance(letter, dict):
        fields |= {"claims" if key == "claim_count" else key: letter[key] for key in letter}
    return {key: field for key, field in fields.items() if field is not None or key == "body"}


def _encoded(record: object) -> str:
    return json.dumps(record, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)


def printable(value: object) -> str:
    """Return a text of one line: what a terminal would obey is made visible."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(value))


def shown(rows: Iterable[Mapping[str, object]]) -> list[dict[str, str]]:
    """Return the values of rows as a terminal shows them; nothing for None."""
    return [{key: _cell(key, value) for key, value in row.items()} for row in rows]


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if column in DURATIONS and isinstance(value, int | float):
        return duration_shown(value)
    if isinstance(value, dt.datetime):
        return str(_plain(value))
    return printable(value if isinstance(value, str) else _encoded(value))


class Retrying:
    """Print the first failure whose request is sent again, and its wait; threads may share it.

    A terminal gets one line that counts down; elsewhere a wait of a second or more is a line.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False
        self._until = 0.0

    def __call__(self, retry: "sdk.Resend") -> None:
        """Print one failure; the caller waits afterwards."""
        with self._lock:
            if not self._told:
                self._told = True
                print(f"zaqar-lite: {printable(retry.failure)}", file=sys.stderr, flush=True)
            now = time.monotonic()
            if now < self._until:
                return  # another request has told of its wait, and it is not over
            self._until = now + retry.seconds
            words = f"trying again ({retry.attempt + 1} of {retry.attempts})"
            if sys.stderr.isatty():
                threading.Thread(target=_count, args=[words, self._until], daemon=True).start()
            elif retry.seconds >= 1:
                words += f" in {duration_shown(retry.seconds)}"
                print(f"zaqar-lite: {words}", file=sys.stderr, flush=True)


def _count(words: str, until: float) -> None:
    """Count down in one line, which is empty in the end."""
    while (left := until - time.monotonic()) > 0:
        print(f"{CLEAR}{words} in {math.ceil(left)}s", end="", file=sys.stderr, flush=True)
        time.sleep(min(left, 0.2))
    print(CLEAR, end="", file=sys.stderr, flush=True)
