"""What a command prints: tables on a terminal, JSON lines in a pipe or with --json."""

import dataclasses
import datetime as dt
import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# A table needs its rows in memory to align them, so a long listing is several tables.
ROWS_PER_TABLE = 500


class Output:
    """Standard output, in one of two forms; the form never changes what is told."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json or not sys.stdout.isatty()

    def rows(self, rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> None:
        """Print rows; a table shows only `columns`, JSON everything."""
        if self.as_json:
            for row in rows:
                print(_encoded(row))
            return
        from rich.console import Console  # noqa: PLC0415 - a pipe never needs rich
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        console, iterator, shown = Console(), iter(rows), False
        while part := list(itertools.islice(iterator, ROWS_PER_TABLE)):
            table = Table(*columns, header_style="bold")
            for row in part:
                # Text, not str: a body may hold what rich would read as its own markup.
                table.add_row(*(Text(_shown(row.get(column))) for column in columns))
            console.print(table)
            shown = True
        if not shown:
            self.say("nothing")

    def record(self, record: Mapping[str, object]) -> None:
        """Print one thing."""
        if self.as_json:
            print(_encoded(record))
            return
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(show_header=False)
        for key, value in record.items():
            table.add_row(Text(key, style="bold"), Text(_shown(value)))
        Console().print(table)

    def say(self, text: str) -> None:
        """Tell a person at a terminal, and no pipe."""
        if not self.as_json:
            print(text, file=sys.stderr)


def as_row(value: Any) -> dict[str, object]:  # noqa: ANN401 - any of the SDK's dataclasses
    """Return a dataclass's fields that have a value."""
    fields: dict[str, object] = dataclasses.asdict(value)
    return {key: field for key, field in fields.items() if field is not None or key == "body"}


def _encoded(record: object) -> str:
    return json.dumps(record, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)


def _shown(value: object) -> str:
    """Return a cell's text: what a terminal would obey is made visible."""
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return str(_plain(value))
    text = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
    )
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
