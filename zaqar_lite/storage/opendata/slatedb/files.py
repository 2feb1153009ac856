"""The files that a SlateDB store lives in: which count, whether they are whole, what they hold.

Only the tables that the manifest names count: in others, which wait for their collection, rows are
found whose deletion was forgotten since. Of the write-ahead log the files behind the manifest's
position count, and those right before it, back to the first that is not whole: they hold
deletions as well as what was deleted, and may still have what a damaged table has lost.

An empty file of the log is a fence, which every start leaves. One that was emptied looks the same,
but then a sequence is missing between the files around it, or at the end one that is noted beside
the store: every commit has the next one.
"""

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

from zaqar_lite.storage.opendata.format.keys import describe
from zaqar_lite.storage.opendata.slatedb.binding import slatedb
from zaqar_lite.storage.opendata.slatedb.table import (
    BadLayout,
    Layout,
    Lost,
    Row,
    UnknownVersion,
    are_blocks_intact,
    is_intact_behind_blocks,
    read_blocks,
    read_layout,
)

_Ordered: TypeAlias = tuple[bytes, int, bytes | None]  # key, sequence below zero, value
_ORDER = itemgetter(0, 1)


class Table(NamedTuple):
    """A table: its file, what the manifest says of it, and its first and last key."""

    file: Path
    layout: Layout
    first: bytes
    last: bytes


class Files(NamedTuple):
    """The files of a store.

    `runs` are tables in the order of their keys. `old_logs` and `logs` are the write-ahead log's
    files before and behind the position from which it is replayed; some may be missing.
    `sequence` is that of the last commit in the tables.
    """

    runs: Sequence[Sequence[Table]]
    old_logs: Sequence[Path]
    logs: Sequence[Path]
    sequence: int


def files_of(place: Path, manifest: slatedb.VersionedManifest) -> Files:
    """The files that a manifest names.

    Raises:
        UnknownVersion: the store uses something that is never used here.
    """
    runs = [[view] for view in manifest.l0] + [run.sst_views for run in manifest.compacted]
    views = [view for run in runs for view in run]
    if manifest.segments or manifest.external_dbs or any(view.visible_range for view in views):
        raise UnknownVersion(f"{place} has segments, or tables that belong to it in part")
    found = {int(file.stem): file for file in (place / "wal").glob("*.sst") if file.stem.isdigit()}
    replayed = int(manifest.replay_after_wal_id)
    ids = range(replayed + 1, max(found, default=0) + 1)
    return Files(
        [[_table(place, view.sst) for view in run] for run in runs],
        [found[number] for number in sorted(found) if number <= replayed],
        [place / "wal" / f"{number:020}.sst" for number in ids],
        int(manifest.last_l0_seq),
    )


def _table(place: Path, handle: slatedb.SsTableHandle) -> Table:
    info = handle.info
    parts = (
        (info.filter_offset, info.filter_len),
        (info.index_offset, info.index_len),
        (info.stats_offset, info.stats_len),
    )
    present = tuple(part for part in parts if part[1])
    layout = Layout(min((offset for offset, _ in present), default=0), parts[1], present)
    file = place / "compacted" / f"{handle.id.value}.sst"
    return Table(file, layout, info.first_entry or b"", info.last_entry or b"")


def with_newer(place: Path, files: Files) -> Files:
    """Add the tables that were written after all that the manifest names.

    Their names are in the order of time.

    Raises:
        UnknownVersion: another release wrote one.
        OSError: one can't be read.
    """
    named = max((table.file.name for run in files.runs for table in run), default="")
    newer = [file for file in (place / "compacted").glob("*.sst") if file.name > named]
    runs = [[Table(file, _layout(file), b"", b"")] for file in newer]
    sequences = [_sequences(file)[1] for file in newer]
    return files._replace(
        runs=[*files.runs, *runs], sequence=max([files.sequence, *sequences], default=0)
    )


def _layout(file: Path) -> Layout:
    try:
        return read_layout(file)
    except BadLayout:
        return Layout(file.stat().st_size, (0, 0), ())


def problems_of(files: Files, durable: int) -> list[str]:
    """Say what keeps SlateDB from opening or reading a store, save damaged blocks of tables.

    Reads the ends of the tables, and the log's files, as SlateDB does then. `durable` is the
    sequence of a commit that must be there.

    Raises:
        UnknownVersion: another release wrote a file.
        OSError: one can't be read.
    """
    found = []
    for table in (table for run in files.runs for table in run):
        problem = _problem(table.file, table.layout)
        if problem is not None:
            found.append(f"{table.file}: {problem}")
    return found + _problems_of_log(files, durable)


def _problems_of_log(files: Files, durable: int) -> list[str]:
    found, before, unsure = [], files.sequence, list(files.logs[:1])
    last: Path | None = None
    for file in files.logs:
        if _is_empty(file):
            unsure.append(file)
            continue
        problem = _problem(file, None)
        if problem is not None:
            found.append(f"{file}: {problem}")
        if unsure:
            if last is not None:
                before = max(before, _sequences(last)[1])
            first = _sequences(file)[0]
            if first > before + 1:
                names = ", ".join(str(file) for file in unsure)
                found.append(f"{names}: commits {before + 1} to {first - 1} are missing")
        last, unsure = file, []
    end = files.sequence if last is None else max(files.sequence, _sequences(last)[1])
    newest = next((file for file in reversed(files.old_logs) if not _is_empty(file)), None)
    if newest is not None and _sequences(newest)[1] > end:
        found.append(f"{newest}: the manifest leaves it out")
        end = _sequences(newest)[1]
    if end < durable:
        names = ", ".join(str(file) for file in unsure) or "the write-ahead log"
        found.append(f"{names}: commits {end + 1} to {durable} are missing")
    return found


def _problem(file: Path, expected: Layout | None) -> str | None:
    """Say what is wrong with a table, or with a file of the log, of which nothing is expected."""
    try:
        layout = read_layout(file)
    except FileNotFoundError:
        return "it is missing"
    except BadLayout as exc:
        return f"{exc}"
    if expected is not None and layout != expected:
        return "the manifest describes it otherwise"
    if not is_intact_behind_blocks(file, layout):
        return "its index or its filter is damaged"
    if expected is None and not are_blocks_intact(file, layout):
        return "blocks of its rows are damaged"
    return None


def _is_empty(file: Path) -> bool:
    return not file.exists() or not file.stat().st_size


def _sequences(file: Path) -> tuple[int, int]:
    """The first and the last sequence of a file that can be read; zeros if there is none."""
    found = [row.sequence for rows in _blocks(file) if not isinstance(rows, Lost) for row in rows]
    return min(found, default=0), max(found, default=0)


def _blocks(file: Path) -> Iterator[Sequence[Row] | Lost]:
    try:
        end = read_layout(file).blocks_end
    except BadLayout:
        end = None
    return read_blocks(file, end)


class Salvaged:
    """What is intact in the files of a store; `losses` names the rest as it is met."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.losses: list[str] = []

    def rows(self) -> Iterator[Row]:
        """Read every key's newest row that holds a value, in order of the keys.

        Raises:
            UnknownVersion: another release wrote a file.
            OSError: one can't be read.
        """
        sources = [self._rows_of_run(run) for run in self._files.runs]
        sources.append(iter(self._rows_of_log()))
        last = None
        for key, sequence, value in heapq.merge(*sources, key=_ORDER):
            if key != last and value is not None:
                yield Row(key, -sequence, value)
            last = key

    def _rows_of_run(self, run: Sequence[Table]) -> Iterator[_Ordered]:
        for table in run:
            yield from self._rows_of_table(table)

    def _rows_of_table(self, table: Table) -> Iterator[_Ordered]:
        file, end = table.file, table.layout.blocks_end
        if not file.exists():
            self._lose(file, "is missing", table.first, table.last)
            return
        with contextlib.suppress(BadLayout):  # what the manifest says of it has to do then
            end = read_layout(file).blocks_end
        last, lost = table.first, None
        for block in read_blocks(file, end):
            if isinstance(block, Lost):
                lost = block
                continue
            if lost is not None:
                self._lose(file, f"bytes {lost.start} to {lost.end}", last, block[0].key)
                lost = None
            for row in block:
                yield row.key, -row.sequence, row.value
            last = block[-1].key
        if lost is not None:
            self._lose(file, f"bytes {lost.start} to {lost.end}", last, table.last)

    def _lose(self, file: Path, what: str, first: bytes, last: bytes) -> None:
        self.losses.append(
            f"{file}, {what}: what was written from {describe(first)} to {describe(last)} can't be "
            "read; where the write-ahead log has it no more, it is missing, or has an older value"
        )

    def _rows_of_log(self) -> list[_Ordered]:
        """Read the rows of the log: at most what SlateDB holds in memory."""
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        for file in [*self._old_logs(), *self._files.logs]:
            for row in self._rows_of_file(file):
                known = newest.get(row.key)
                if known is None or known[0] <= row.sequence:
                    newest[row.key] = row.sequence, row.value
        return sorted(
            ((key, -sequence, value) for key, (sequence, value) in newest.items()), key=_ORDER
        )

    def _old_logs(self) -> list[Path]:
        whole: list[Path] = []
        following = self._files.sequence + 1
        for file in reversed(self._files.old_logs):
            if not file.stat().st_size:
                continue
            if _problem(file, None) is not None:
                break
            first, last = _sequences(file)
            if last + 1 < following:
                break
            following = first
            whole.append(file)
        return whole[::-1]

    def _rows_of_file(self, file: Path) -> Iterator[Row]:
        if _is_empty(file):
            return
        last = 0
        for block in _blocks(file):
            if isinstance(block, Lost):
                self.losses.append(
                    f"{file}, bytes {block.start} to {block.end}: records of a commit can't be "
                    "read; they are missing, or have an older value"
                )
            else:
                yield from block
                last = block[-1].sequence
        if (problem := _problem(file, None)) is not None:
            self.losses.append(
                f"{file}: {problem}; the last commit of it that can be read is number {last}"
            )
