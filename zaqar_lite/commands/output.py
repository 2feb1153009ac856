"""What a command prints: tables on a terminal, JSON lines in a pipe or with --json, retries.

Where a terminal is too narrow for the columns of a table, each row is a small table of its fields.
"""

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

# What is copied from a table stays in one piece; everything else wraps where it must.
IDS = frozenset({"id", "message_id", "claim_id", "claim", "marker", "until", "name", "queue"})
NARROWEST = 20
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
            self._table(part, columns)
            empty = ""
        if text := empty if isinstance(empty, str) else empty():
            self.say(text)

    @staticmethod
    def _table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
        from rich.console import Console  # noqa: PLC0415 - a pipe never needs rich
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        columns = [one for one in columns if any(row.get(one) is not None for row in rows)]
        cells = [[_cell(column, row.get(column)) for column in columns] for row in rows]
        table, needed = Table(header_style="bold"), 1
        for number, column in enumerate(columns):
            longest = max(len(column), *(len(row[number]) for row in cells))
            least = longest if column in IDS else min(longest, max(len(column), NARROWEST))
            table.add_column(column, overflow="fold", no_wrap=column in IDS, min_width=least)
            needed += least + 3
        console = Console()
        if needed > console.width and len(columns) > 1:
            _print_fields([dict(zip(columns, row, strict=True)) for row in cells])
            return
        for row in cells:
            # Text, not str: a body may hold what rich would read as its own markup.
            table.add_row(*map(Text, row))
        console.width = max(console.width, needed)
        console.print(table)

    def record(self, record: Mapping[str, object]) -> None:
        """Print one thing."""
        if self.as_json:
            print(_encoded(record))
            return
        _print_fields([{key: _cell(key, value) for key, value in record.items()}])

    def line(self, text: str) -> None:
        """Print a line above a table; in JSON the rows have the same facts as fields."""
        if not self.as_json:
            print(printable(text))

    def say(self, text: str) -> None:
        """Tell a person at a terminal, and no pipe."""
        if not self.as_json:
            print(text, file=sys.stderr)


def _print_fields(rows: Sequence[Mapping[str, str]]) -> None:
    """Print a line for each field that has a value, and a rule between two rows."""
    from rich.console import Console  # noqa: PLC0415 - a pipe never needs rich
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table, longest_key, longest_id = Table(show_header=False), 0, 0
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        for key, cell in row.items():
            if cell:
                table.add_row(Text(key, style="bold"), Text(cell))
                longest_key = max(longest_key, len(key))
                longest_id = max(longest_id, len(cell) if key in IDS else 0)
        table.add_section()
    console = Console()
    # On a terminal that is too narrow for its ids the terminal wraps the lines, whole.
    console.width = max(console.width, longest_key + longest_id + 7)
    console.print(table)


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


def _cell(column: str, value: object) -> str:
    if column in DURATIONS and isinstance(value, int | float):
        return duration_shown(value)
    return _shown(value)


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return str(_plain(value))
    text = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
    )
    return printable(text)


class Retrying:
    """Print each failure whose request is sent again; several threads may share it.

    A terminal gets one line that counts down; elsewhere a wait of a second or more is a line.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False
        self._until = 0.0
        self._words = ""

    def __call__(self, retry: "sdk.Resend") -> None:
        """Print one failure; the caller waits afterwards."""
        with self._lock:
            terminal = sys.stderr.isatty()
            if not self._told:
                self._told = True
                self._print(
                    f"{'' if not terminal else CLEAR}zaqar-lite: {printable(retry.failure)}\n"
                )
            now = time.monotonic()
            counting = now < self._until
            if counting and not terminal:
                return  # another request has told of its wait, and it is not over
            self._words = f"trying again ({retry.attempt + 1} of {retry.attempts})"
            self._until = now + retry.seconds
            if terminal:
                if not counting:
                    threading.Thread(target=self._count, daemon=True).start()
            elif retry.seconds >= 1:
                self._print(f"zaqar-lite: {self._words} in {duration_shown(retry.seconds)}\n")

    def _count(self) -> None:
        while True:
            with self._lock:
                left = self._until - time.monotonic()
                if left <= 0:
                    self._print(CLEAR)
                    return
                self._print(f"{CLEAR}{self._words} in {math.ceil(left)}s")
            time.sleep(min(left, 0.2))

    @staticmethod
    def _print(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
