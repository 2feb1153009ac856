"""The process that writes the SQLite file, and the wire to it.

    batch    u32 number of puts, u32 of deletes, u64 bytes that follow: u32 lengths of the keys of
             the puts, of their values, of the keys of the deletes; then these, one after the other
    answer   i32 SQLite's error code, 0 for done; u32 bytes that follow: the error's text

It is a process because a thread would take the interpreter from the event loop four times a
statement, with each waiting for the other. It is started without the rest of the package, so it
imports nothing but `file.py`.

Its first answer says that the file is open. It ends when its standard input does, for example when
its server dies. Until then it holds `writer.lock`, so that the next server reads the file only once
the last batch of this one is stored or never will be. While no batch comes, it gives free pages
back to the file system, a few at a time.
"""

import fcntl
import os
import select
import signal
import sqlite3
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

from .file import Database

ANSWER = struct.Struct("<iI")
LOCK = "writer.lock"
START = (
    "import os, sys; sys.path.append(os.path.dirname(os.path.dirname(sys.argv[1]))); "
    "from sqlite.writer import main; main(sys.argv[2])"
)
"""The program of the process; its arguments are this file and the database."""
_BATCH = struct.Struct("<IIQ")
_BUFFER = 1 << 20
_IDLE = 0.05
"""Seconds without a batch after which free pages are given back."""


def encode_batch(puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> bytes:
    """Encode a batch for the wire."""
    fields = [*puts, *puts.values(), *deletes]
    lengths = array("I", map(len, fields)).tobytes()
    content = b"".join(fields)
    head = _BATCH.pack(len(puts), len(deletes), len(lengths) + len(content))
    return b"".join((head, lengths, content))


def main(place: str) -> None:
    """Write every batch that comes on standard input to the database at `place`."""
    path = Path(place)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group: its server ends it
    try:
        lock = os.open(path.with_name(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        database = Database(path)
    except (OSError, sqlite3.Error) as exc:
        _answer(exc)
        return
    _answer(None)
    with open(0, "rb", buffering=_BUFFER, closefd=False) as wire:
        while _serve(wire, database):
            pass
    database.close()


def _serve(wire: BinaryIO, database: "Database") -> bool:
    """Write one batch and answer, then tidy up till the next; False where the wire ends."""
    rows = _read(wire)
    if rows is None:
        return False
    try:
        database.write(*rows)
    except sqlite3.Error as exc:
        _answer(exc)
    else:
        _answer(None)
    database.tidy(is_idle=False)
    while not select.select([wire], (), (), _IDLE)[0]:
        if not database.tidy(is_idle=True):
            break
    return True


def _read(wire: BinaryIO) -> tuple[Mapping[bytes, bytes], Sequence[bytes]] | None:
    """The next batch; None where the wire ends, even inside a batch."""
    try:
        head = wire.read(_BATCH.size)
        if len(head) < _BATCH.size:
            return None
        puts, deletes, size = _BATCH.unpack(head)
        data = wire.read(size)
    except ConnectionResetError:  # the server died without reading an answer
        return None
    if len(data) < size:
        return None
    start = 4 * (2 * puts + deletes)
    ends = accumulate(array("I", data[:start]), initial=start)
    fields = [data[begin:end] for begin, end in pairwise(ends)]
    return dict(zip(fields[:puts], fields[puts : 2 * puts], strict=True)), fields[2 * puts :]


def _answer(exc: Exception | None) -> None:
    code = 0 if exc is None else getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN)
    text = b"" if exc is None else str(exc).encode()
    try:
        os.write(0, ANSWER.pack(code, len(text)) + text)
    except OSError:
        sys.exit()  # the server is gone
