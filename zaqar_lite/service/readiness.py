"""Readiness: whether this process should be sent requests now."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.base import MessageStore

_PATIENCE = 2.0
"""Seconds that the store has to answer; probes give up after little more."""
MIN_FREE = 16 << 20
"""Bytes that the disk of a store with files must have free."""


class Check(NamedTuple):
    """One thing that was looked at; `problem` says what is wrong, None when it is well."""

    name: str
    problem: str | None


class Readiness:
    """Tell whether the server is ready: its store is open and takes writes, and it does not stop.

    Anybody may ask, so no problem says where the store is: the log does. `directory` is where the
    store's files lie, None for a store elsewhere.
    """

    def __init__(
        self, store: MessageStore, check_open: Callable[[], None], directory: Path | None
    ) -> None:
        self._store = store
        self._check_open = check_open
        self._directory = directory
        self._draining = False

    def drain(self) -> None:
        """Be unready from now on: the server is about to stop, and still serves."""
        self._draining = True

    async def checks(self) -> tuple[Check, ...]:
        """Look at everything; never raises."""
        return (
            Check("store", await self._store_problem()),
            Check("disk", self._disk_problem()),
            Check("draining", "the server is stopping" if self._draining else None),
        )

    async def _store_problem(self) -> str | None:
        try:
            self._check_open()
            await asyncio.wait_for(self._store.ping(), _PATIENCE)
        except TimeoutError:
            return f"it did not answer within {_PATIENCE:.0f} s"
        except Unavailable as exc:
            return exc.shown
        return None

    def _disk_problem(self) -> str | None:
        if self._directory is None:
            return None
        try:
            found = os.statvfs(self._directory)
        except OSError as exc:
            return f"the store's directory: {exc.strerror}"
        free = found.f_bavail * found.f_frsize
        if free < MIN_FREE:
            return f"{free >> 20} MiB are free; {MIN_FREE >> 20} are needed"
        return None
