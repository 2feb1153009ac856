"""The rows of new messages: entries and bodies of as many queues as one step adds to."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.sql import entries
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import DELAYED, INSERT_ENTRY, READY
from zaqar_lite.storage.sql.queues import Queue

_INSERT_BODY = "INSERT INTO body VALUES (?, ?, ?)"


class NewRows:
    """The rows of new messages, of as many queues as one step adds to."""

    def __init__(self, db: Database, client_id: str, now_us: int) -> None:
        self._db = db
        self._client_id = client_id
        self._now_us = now_us
        self._entries: list[tuple[object, ...]] = []
        self._bodies: list[tuple[int, int, bytes]] = []
        self._left: list[int] = []

    def add(
        self, queue: Queue, new: Sequence[NewMessage], bodies: Sequence[int] | None = None
    ) -> list[str]:
        """Add messages at the end of a queue; answer their ids.

        `bodies` are the numbers of the bodies of other messages, where these are their copies.
        """
        db, now, content, count = self._db, self._now_us // 1000, queue.content, len(new)
        db.touch(queue)
        first = db.take_positions(count, self._now_us)
        ids = db.new_ids(first, count)
        delayed, size, over_at = 0, 0, queue.over_at
        for index, one in enumerate(new):
            position, expires, headers = first + index, now + one.ttl_ms, one.headers
            due = 0
            if one.delay_ms:
                due = now + one.delay_ms
                delayed += 1
                queue.ready_at = min(queue.ready_at, due)
            over_at = min(over_at, expires)
            length = len(one.body)
            size += length
            if bodies is None:
                body, holders = position, 1 + len(one.copies) if one.copies else 1
                self._bodies.append((position, holders, one.body))
            else:
                body, holders = bodies[index], 2  # it is another message's: at least these two
            group = None if headers is None else group_of(headers)
            self._entries.append((
                content, position, bytes.fromhex(ids[index]), DELAYED if due else READY,
                one.priority, due, 0, expires, one.ttl_ms, now, 0, 0, None, 0, None, body,
                int(holders > 1), 0, 0, self._client_id, json.dumps(headers) if headers else None,
                None if group is None else group.encode(errors="surrogatepass"), None, length,
            ))  # fmt: skip
        queue.over_at = over_at
        queue.bytes += size
        queue.delayed += delayed
        queue.ready += count - delayed
        if db.watchers:
            db.announce(queue.ref, count - delayed)
        return ids

    def add_copies(
        self,
        messages: Sequence[NewMessage],
        ids: Sequence[str],
        copies: Iterable[tuple[int, Copy]],
        is_there: Callable[[Queue | None], bool],
    ) -> None:
        """Add copies of messages with these ids, each with its message's index.

        A queue that is not there any more gets none: it was dropped since it was chosen.
        """
        made: dict[QueueRef, list[tuple[NewMessage, int]]] = defaultdict(list)
        for index, copy in copies:
            message, body = messages[index], int(ids[index][:16], 16)
            if is_there(self._db.queue(copy.queue)):
                fresh = NewMessage(
                    message.body, copy.ttl_ms, copy.delay_ms, None, message.headers, copy.priority
                )
                made[copy.queue].append((fresh, body))
            else:
                self._left.append(body)
        for ref, of_queue in made.items():
            new, bodies = zip(*of_queue, strict=True)
            self.add(self._db.make_queue(ref), new, bodies)

    def add_outbox(self, messages: Sequence[NewMessage], ids: Sequence[str]) -> None:
        """Add the outbox messages of messages with these ids."""
        for message, own_id in zip(messages, ids, strict=True):
            for one in message.outbox:
                new = NewMessage(one.body_with(own_id), one.ttl_ms, one.delay_ms, None, None)
                self.add(self._db.make_queue(one.queue), [new])

    def insert(self) -> None:
        """Insert all of them."""
        if len(self._entries) == 1 and self._bodies:
            self._db.execute(_INSERT_BODY, self._bodies[0])
            self._db.execute(INSERT_ENTRY, self._entries[0])
        else:
            self._db.executemany(_INSERT_BODY, self._bodies)
            self._db.executemany(INSERT_ENTRY, self._entries)
        entries.leave_bodies(self._db, self._left)
