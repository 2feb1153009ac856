"""The audit trail: one line of JSON for each managing act, added to a file, a stream or a queue.

An act that was carried out never fails because its line can't be written: the log says so instead.
"""

import asyncio
import contextlib
import json
import logging
import os
import uuid
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.background import Background, BackgroundWorker, Worker
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.post_validation import Draft

logger = logging.getLogger("zaqar_lite")
Event = Mapping[str, Any]
STDERR = 2
_CLIENT_ID = uuid.uuid5(uuid.NAMESPACE_URL, "zaqar-lite:audit").hex
_MOST_WAITING = 10_000
_BATCH = 50
_PAUSE = 1.0
_LOOK_EVERY = 60.0
_LAST_WORDS = 3.0
"""Seconds in which a stop stores what still waits."""


class Act(NamedTuple):
    """What a route does, in CADF's words: an action on a type of resource."""

    action: str
    target: str


class Trail(Worker):
    """Where events go."""

    def add(self, event: Event) -> None:
        """Add an event after all others."""
        raise NotImplementedError

    def reopen(self) -> None:
        """Go on in another file where the one that was written to was moved away."""


class FileTrail(Trail):
    """Lines at the end of a file, which several processes may write to, or of standard error."""

    def __init__(self, path: Path | None) -> None:
        """Open a file, for this user alone where it is new; None is standard error.

        Raises:
            ConfigurationError: it can't be opened.
        """
        self._path = path
        try:
            self._file = STDERR if path is None else self._open(path)
        except OSError as exc:
            raise ConfigurationError(f"audit: {path}: {exc.strerror}.") from None

    def add(self, event: Event) -> None:
        """Write a line, in one step: those of other processes are not mixed with it."""
        line = json.dumps(event).encode() + b"\n"
        try:
            written = os.write(self._file, line)
            if written < len(line):
                os.write(self._file, line[written:])
        except OSError as exc:
            logger.error("the audit trail %s can't be written: %s", self._path, exc.strerror)

    def reopen(self) -> None:
        """Open the file again; if that fails, go on writing to the old one."""
        if self._path is None:
            return
        try:
            opened = self._open(self._path)
        except OSError as exc:
            logger.error("the audit trail %s can't be opened: %s", self._path, exc.strerror)
            return
        os.close(self._file)
        self._file = opened

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class QueueTrail(BackgroundWorker, Trail):
    """Messages of a queue, posted after the acts; the first one makes the queue.

    While the store does not answer, up to 10,000 events wait. Beyond that the oldest are dropped,
    and the log says so.
    """

    def __init__(self, messages: Messages, queue: QueueRef, limits: Limits) -> None:
        self._messages = messages
        self._queue = queue
        self._limits = limits
        self._waiting: deque[Event] = deque()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._work = Background("the audit trail", self._post_all, rest=_PAUSE)

    def add(self, event: Event) -> None:
        """Let an event wait for its post."""
        if len(self._waiting) >= _MOST_WAITING:
            lost = self._waiting.popleft()
            logger.error("an event of the audit trail is lost: %s", json.dumps(lost))
        self._waiting.append(event)
        self._emptied.clear()
        self._work.wake()

    async def stop(self) -> None:
        """Post what waits, for a few seconds at most; idempotent."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), _LAST_WORDS)
        await super().stop()
        while self._waiting:
            event = self._waiting.popleft()
            logger.error("an event of the audit trail is lost: %s", json.dumps(event))

    async def _post_all(self) -> float:
        while self._waiting:
            await self._post()
        self._emptied.set()
        return _LOOK_EVERY

    async def _post(self) -> None:
        """Post the first events.

        An event whose answer was lost is posted again, so it may be there twice.
        """
        size = min(_BATCH, self._limits.max_messages_per_post, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(size)]
        ttl = self._limits.max_message_ttl
        drafts = [Draft(json.dumps(event).encode(), ttl=ttl) for event in batch]
        try:
            await self._messages.post(self._queue, drafts, size=0, client_id=_CLIENT_ID)
        except BaseException as exc:
            is_refused = isinstance(exc, ZaqarLiteError) and not isinstance(exc, Unavailable)
            if not is_refused:
                self._waiting.extendleft(reversed(batch))
                raise
            logger.error("%d events of the audit trail are lost: %s", len(batch), exc)


def make_trail(where: str, messages: Messages, limits: Limits) -> Trail:
    """Make the trail that a setting names: a file, `stderr`, `queue:NAME`, `queue:PROJECT/NAME`.

    A queue without a project is one of the project `audit`. Its messages live as long as `limits`
    allow.

    Raises:
        ConfigurationError: the file can't be opened, or the queue's name is not valid.
    """
    if where == "stderr":
        return FileTrail(None)
    scheme, _, rest = where.partition(":")
    if scheme != "queue":
        return FileTrail(Path(where))
    project, _, name = rest.rpartition("/")
    if not is_queue_name(name):
        raise ConfigurationError(f"audit: {name!r} is no name of a queue.")
    return QueueTrail(messages, QueueRef(project or "audit", name), limits)
