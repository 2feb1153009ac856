"""Tables on a terminal; nothing of this is imported for a pipe, which never needs rich.

Where a terminal is too narrow for the columns of a table, each row is a small table of its fields.
"""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

# What is copied from a table stays in one piece; everything else wraps where it must.
IDS = frozenset({"id", "message_id", "claim_id", "claim", "marker", "until", "name", "queue"})
NARROWEST = 20


def table(rows: Sequence[Mapping[str, str]], columns: Sequence[str], console: Console) -> Table:
    """Return rows as a table of those columns in which something stands.

    The console becomes as wide as the ids need: the terminal then wraps the lines, whole.
    """
    said = [one for one in columns if any(row.get(one) for row in rows)]
    columns = said or columns
    # Text, not str: a body may hold what rich would read as its own markup.
    cells = [[Text(row.get(column, "")) for column in columns] for row in rows]
    found, needed = Table(header_style="bold"), 1
    for column, *texts in zip(columns, *cells, strict=True):
        longest = max(map(len, (column, *texts)))
        least = longest if column in IDS else min(longest, max(len(column), NARROWEST))
        found.add_column(column, overflow="fold", no_wrap=column in IDS, min_width=least)
        needed += least + 3
    if needed > console.width and len(columns) > 1:
        return fields(rows, columns, console)
    console.width = max(console.width, needed)
    for row in cells:
        found.add_row(*row)
    return found


def fields(rows: Sequence[Mapping[str, str]], names: Sequence[str], console: Console) -> Table:
    """Return a table with a line for each field that has a value, and a rule between two rows."""
    found, longest_name, longest_id = Table(show_header=False), 0, 0
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    for row in rows:
        for name in names:
            if text := row.get(name):
                found.add_row(Text(name, style="bold"), Text(text))
                longest_name = max(longest_name, len(name))
                longest_id = max(longest_id, len(text) if name in IDS else 0)
        found.add_section()
    console.width = max(console.width, longest_name + longest_id + 7)
    return found
