"""The server's end of the wire to the process that writes the SQLite file (`writer.py`)."""

import asyncio
import logging
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import cast

from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.sqlite import writer
from zaqar_lite.storage.opendata.sqlite.writer import ANSWER

logger = logging.getLogger(__name__)
_PATIENCE = 30.0
"""Seconds for the last batch of an earlier server's writer, and for SQLite to open the file."""
_LAST_CHECKPOINT = 10.0
"""Seconds for a writer to end."""


class WriterEnded(Exception):
    """The writer is gone: its last batch is stored or never will be."""


class WriterLink(asyncio.Protocol):
    """One writer process; takes a batch at a time."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._done = asyncio.get_running_loop().create_future()
        self.ended = False
        """Whether the writer is gone, or to be."""
        self.owes_answer = False
        """Whether there is a batch of which nobody was told if it is written."""

    @classmethod
    async def start(cls, path: Path) -> "WriterLink":
        """Start a writer and wait until the file is open.

        Raises sqlite3.Error: it can't be opened; WriterEnded: the writer ended; TimeoutError: the
        writer of an earlier server is still at work; OSError: no process can be started.
        """
        process, wire = _spawn(path)
        link = cls(process)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=wire)
            await asyncio.wait_for(link._done, _PATIENCE)
        except BaseException:
            process.kill()
            if link._transport is None:
                wire.close()
            await link.stop()
            raise
        return link

    async def write(self, batch: Batch) -> None:
        """Write a batch in one transaction; when this returns, it is on the disk.

        Raises sqlite3.Error: nothing of it was written; WriterEnded: it was written or not, but
        will not be any more.
        """
        if self.ended or self._transport is None:
            raise WriterEnded
        self._done = asyncio.get_running_loop().create_future()
        self.owes_answer = True
        self._transport.write(writer.encode_batch(batch.puts, batch.deletes))
        try:
            await self._done
        except asyncio.CancelledError:
            self.ended = True  # its answer would be taken for the next batch's
            self._transport.abort()
            raise

    async def stop(self) -> None:
        """Let the writer end, and wait until it has; one that does not move is killed."""
        if self._transport is not None:
            self._transport.close()
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._end)
        except RuntimeError:  # no thread can be started
            self._end()

    def _end(self) -> None:
        try:
            self._process.wait(_LAST_CHECKPOINT)
        except subprocess.TimeoutExpired:
            logger.error("the writer does not end, and is killed: what it answered for is stored")
            self._process.kill()
            self._process.wait()

    # -- what the event loop calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Take an answer, or a part of one."""
        self._received += data
        if len(self._received) < ANSWER.size:
            return
        code, size = ANSWER.unpack_from(self._received)
        if len(self._received) < ANSWER.size + size:
            return
        text = self._received[ANSWER.size :].decode()
        self._received.clear()
        self.owes_answer = self._done.cancelled()
        if self._done.done():
            return  # its caller went away
        if code:
            error = sqlite3.OperationalError(text)
            error.sqlite_errorcode = code
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits that there will be no answer."""
        self.ended = True
        if not self._done.done():
            self._done.set_exception(WriterEnded())


def _spawn(path: Path) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", "-c", writer.START, writer.__file__, str(path)]
    with theirs:
        try:
            return subprocess.Popen(command, stdin=theirs.fileno()), ours  # noqa: S603 - ours
        except OSError:
            ours.close()
            raise
