"""Objects and listings of one account, in this driver's terms.

A listing may be late on a real cluster; an object that is read with X-Newest is not. So wherever
something is decided, the listing proposes and the object decides.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import NamedTuple, TypeVar

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.connection import UNBOUNDED, Reply, Swift
from zaqar_lite.storage.swift.layout import Content, Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease

PAGE = MAX_EXAMINED
"""The most entries of one listing: reading a longer page would hold up the event loop."""
UNLOCKED = Lease(UNBOUNDED)
"""The lease of what is done without a lock."""
_NEWEST = {"X-Newest": "true"}
_CONFLICT = frozenset({409})
T = TypeVar("T")


class Entry(NamedTuple):
    """One line of a listing."""

    name: str
    content_type: str


async def together(*steps: Awaitable[T]) -> list[T]:
    """Run steps at once and wait for all, even when one fails: none may still write after that."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


class Objects:
    """Read, write and list; all writes take the lease under which they are allowed."""

    def __init__(self, swift: Swift, clock: Clock) -> None:
        self._swift = swift
        self._clock = clock

    async def list(
        self,
        container: str,
        *,
        after: str = "",
        before: str = "",
        prefix: str = "",
        limit: int = PAGE,
        newest_first: bool = False,
    ) -> Sequence[Entry]:
        """One page of a listing, by name; empty where the container does not exist.

        Without a container it is the account's, of containers. `after` and `before` are exclusive.
        With `newest_first` they change places, as in Swift.
        """
        if newest_first:
            after, before = before, after
        places = {"marker": after, "end_marker": before, "prefix": prefix}
        query: dict[str, str | int] = {key: value for key, value in places.items() if value}
        query |= {"format": "json", "limit": min(limit, PAGE)}
        if newest_first:
            query["reverse"] = "true"
        reply = await self._swift.call("GET", *filter(None, [container]), query=query)
        if not reply.found or not reply.body:
            return ()
        return [
            Entry(entry["name"], entry.get("content_type", "")) for entry in json.loads(reply.body)
        ]

    async def pages(
        self,
        container: str,
        *,
        after: str = "",
        before: str = "",
        prefix: str = "",
        first: int = PAGE,
    ) -> AsyncIterator[Sequence[Entry]]:
        """The pages of a listing: a first one of `first` entries, each next four times as long."""
        limit = min(first, PAGE)
        while True:
            page = await self.list(
                container, after=after, before=before, prefix=prefix, limit=limit
            )
            if page:
                yield page
            if len(page) < limit:
                return
            after, limit = page[-1].name, min(4 * limit, PAGE)

    async def messages(
        self, container: str, *, start: int, before: str = layout.AFTER_MESSAGES, first: int = PAGE
    ) -> AsyncIterator[Sequence[Listed]]:
        """The messages from position `start` on as listings show them, in pages."""
        after = layout.after_position(start - 1) if start else layout.MESSAGES
        async for page in self.pages(container, after=after, before=before, first=first):
            yield [Listed(entry.name, State.parse(entry.content_type)) for entry in page]

    async def count(self, container: str) -> int:
        """How many objects a container has, as far as its own server knows."""
        reply = await self._swift.call("HEAD", container)
        return int(reply.headers.get("X-Container-Object-Count", 0)) if reply.found else 0

    async def get(self, container: str, name: str) -> Reply:
        """Read an object in its newest version."""
        return await self._swift.call("GET", container, name, headers=_NEWEST)

    async def head(self, container: str, name: str) -> Reply:
        """Read what an object says about itself, in its newest version."""
        return await self._swift.call("HEAD", container, name, headers=_NEWEST)

    async def put(
        self,
        container: str,
        name: str,
        content_type: str,
        body: bytes,
        lease: Lease,
        *,
        ends: int | None = None,
    ) -> None:
        """Write an object, and its container where there is none; `ends` sets X-Delete-At."""
        headers = {"Content-Type": content_type, **self._delete_at(ends)}
        for _ in range(3):
            reply = await self._swift.call(
                "PUT", container, name, headers=headers, body=body, until=lease.until
            )
            if reply.found:
                return
            await self.make_container(container, lease)
        raise Unavailable("Swift makes the queue's container and does not find it again.")

    async def mark(
        self, container: str, name: str, content_type: str, lease: Lease, *, ends: int | None
    ) -> bool:
        """Replace an object's content type; False when it does not exist."""
        headers = {"Content-Type": content_type, **self._delete_at(ends)}
        reply = await self._swift.call("POST", container, name, headers=headers, until=lease.until)
        return reply.found

    async def remove(self, container: str, name: str, lease: Lease) -> bool:
        """Delete an object; False when it did not exist."""
        reply = await self._swift.call("DELETE", container, name, until=lease.until)
        return reply.found

    async def make_container(self, container: str, lease: Lease) -> None:
        """Make a container unless it exists."""
        await self._swift.call("PUT", container, until=lease.until)

    async def remove_container(self, container: str, lease: Lease) -> None:
        """Delete a container, unless something is (still) in it."""
        await self._swift.call("DELETE", container, until=lease.until, accept=_CONFLICT)

    async def fetch(self, container: str, name: str) -> Fetched | None:
        """Read a message, whatever its state; None when it is gone."""
        reply = await self.get(container, name)
        if not reply.found:
            return None
        state = State.parse(reply.headers["Content-Type"])
        return Fetched(name, state, Content.parse(reply.body))

    async def listed(self, container: str, name: str) -> Listed | None:
        """Read a message's state; None when it is gone."""
        reply = await self.head(container, name)
        return Listed(name, State.parse(reply.headers["Content-Type"])) if reply.found else None

    async def put_message(self, container: str, message: Fetched, lease: Lease) -> None:
        """Write a message."""
        state = message.state
        await self.put(
            container,
            message.name,
            state.content_type(),
            message.content.encode(),
            lease,
            ends=state.expires_at,
        )

    async def mark_message(self, container: str, name: str, state: State, lease: Lease) -> bool:
        """Change a message's state; False when it is gone."""
        return await self.mark(container, name, state.content_type(), lease, ends=state.expires_at)

    def _delete_at(self, ends: int | None) -> dict[str, str]:
        """X-Delete-At for a deadline: in real time, and late enough for any clock of Swift."""
        if ends is None:
            return {}
        real = math.ceil((ends - self._clock.offset_ms) / 1000) + layout.DELETE_AT_SLACK_S
        now = int((self._clock.now_ms() - self._clock.offset_ms) / 1000)
        return {"X-Delete-At": str(max(real, now + layout.DELETE_AT_SLACK_S))}
