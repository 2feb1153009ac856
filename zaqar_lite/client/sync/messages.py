# Generated from asynchronous/messages.py by tests/generate_sync.py; change it there.
"""Messages: the sync client's methods."""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from zaqar_lite.client import arguments, encoding
from zaqar_lite.client.endpoints import messages
from zaqar_lite.client.errors import BadRequest, MessageNotFound
from zaqar_lite.client.models import Ids, Message, MessagePage, NewMessage
from zaqar_lite.client.posting import (
    Posted,
    PostOptions,
    PostSummary,
    Rejected,
    post_all,
)
from zaqar_lite.client.shell import chunks
from zaqar_lite.client.sync.calls import SyncCalls

I = TypeVar("I")  # noqa: E741 - an item


class SyncMessages(SyncCalls):
    """Post, list, read, edit, delete and pop messages."""

    def post(
        self,
        queue: str,
        body: object,
        *,
        ttl: int | None = None,
        delay: int | None = None,
        deliver_at: dt.datetime | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> str:
        """Post one message and return its id; `NewMessage` explains the arguments."""
        message = NewMessage(
            body=body,
            ttl=ttl,
            delay=delay,
            deliver_at=deliver_at,
            idempotency_key=idempotency_key,
            headers=headers,
            group=group,
        )
        if encoding.has_instant(message):
            self.learn_delay()
        encoded = [self.encode(queue, message, alone=True)]
        ids = self.call(messages.post(queue, encoded))
        return ids[0]

    def post_batch(
        self, queue: str, batch: Iterable[object], *, idempotency_key: str | None = None
    ) -> Ids:
        """Post messages (NewMessage, or bodies) in one request; return their ids in order.

        The same messages posted again with the same `idempotency_key` are stored once, and are
        the `duplicates` of what is returned.

        Raises:
            KeyReused: a key stands for another message; nothing was stored.
        """
        encoded: list[bytes] = []
        for message in arguments.several(batch, "post_batch"):
            if encoding.has_instant(message):
                self.learn_delay()
            encoded.append(self.encode(queue, message))
        return self.call(messages.post(queue, encoded, idempotency_key=idempotency_key))

    def post_all(
        self,
        queue: str,
        items: Iterable[I],
        *,
        batch_size: int = 100,
        batch_bytes: int = 262_144,
        in_flight: int = 8,
        rate: float | None = None,
        key: Callable[[I], str] | None = None,
        run: str | None = None,
        on_posted: Callable[[Posted[I]], None] | None = None,
        on_rejected: Callable[[Rejected[I]], None] | None = None,
    ) -> PostSummary:
        """Post every item of an iterable (NewMessage, or bodies), in constant memory.

        `PostOptions` explains the arguments. Without `on_rejected` the first message that is
        refused raises an error; requests that were under way then may have stored theirs.
        """
        options = PostOptions(
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            in_flight=in_flight,
            rate=rate,
            key=key,
            run=run,
            on_posted=on_posted,
            on_rejected=on_rejected,
        )
        return post_all(self, queue, arguments.several(items, "post_all"), options)

    def list_messages(
        self,
        queue: str,
        *,
        marker: str | None = None,
        until: str | None = None,
        echo: bool = True,
        include_claimed: bool = False,
        include_delayed: bool = False,
        details: bool = False,
        raw: bool = False,
        wait: float = 0,
    ) -> Iterator[Message]:
        """Yield messages in order, page by page, claiming none.

        Args:
            queue: the queue.
            marker: begin after this message, or at this marker of a page or a range.
            until: the last message to show, or the end of a range (`ranges`).
            echo: whether to show what this client id posted.
            include_claimed: whether to show what others hold.
            include_delayed: whether to show what is not claimable yet.
            details: whether to ask for claim counts, times, headers, group and dead-letter source.
            raw: whether bodies stay JSON text (`RawBody`).
            wait: seconds to wait for more at the end of the queue; the loop ends when none came.
        """
        limit = self.page_size
        while True:
            try:
                page = self.list_page(
                    queue,
                    marker=marker,
                    until=until,
                    limit=limit,
                    echo=echo,
                    include_claimed=include_claimed,
                    include_delayed=include_delayed,
                    details=details,
                    raw=raw,
                    wait=wait,
                )
            except BadRequest:
                if limit == self.page_size:
                    raise
                limit = self.large_page = self.page_size  # this server has no large pages
                continue
            yield from page.messages
            marker, limit = page.marker, self.large_page
            if marker is None:
                return

    def list_page(
        self,
        queue: str,
        *,
        marker: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        echo: bool = True,
        include_claimed: bool = False,
        include_delayed: bool = False,
        details: bool = False,
        raw: bool = False,
        wait: float = 0,
    ) -> MessagePage:
        """Return one page of `list_messages`, with the marker of the next."""
        make = partial(
            messages.list_messages,
            queue,
            marker=marker,
            until=until,
            limit=limit or self.page_size,
            echo=echo,
            include_claimed=include_claimed,
            include_delayed=include_delayed,
            details=details,
            raw=raw,
        )
        return self._until_found(make, wait)

    def get_message(self, queue: str, message_id: str, *, details: bool = False) -> Message:
        """Return a message, whatever its state.

        Raises:
            MessageNotFound: there is none (any more).
        """
        return self.call(messages.get_message(queue, message_id, details=details))

    def get_messages(
        self, queue: str, ids: Iterable[str], *, details: bool = False, raw: bool = False
    ) -> Iterator[Message]:
        """Yield those of the messages that exist, in no special order."""
        for part in chunks(arguments.texts("ids", ids, "ids"), self.page_size):
            try:
                found = self.call(messages.get_messages(queue, part, details=details, raw=raw))
            except MessageNotFound:
                continue
            yield from found

    def edit(
        self,
        queue: str,
        message_id: str,
        *,
        body: object = ...,
        ttl: int | None = None,
        delay: int | None = None,
        deliver_at: dt.datetime | None = None,
        if_due: dt.datetime | None = None,
    ) -> Message:
        """Change a message that is still delayed; what is not given stays.

        With `if_due` it is changed only where it is due then (`Message.delay_expires`).

        Raises:
            NotDelayed: too late.
            DueChanged: somebody has moved it.
            MessageNotFound: there is none (any more).
        """
        changed = NewMessage(body=body, delay=delay, deliver_at=deliver_at)
        if encoding.has_instant(changed):
            self.learn_delay()
            self.check_instant(changed)
        return self.call(
            messages.edit(
                queue,
                message_id,
                body=body,
                ttl=ttl,
                delay=delay,
                deliver_at=deliver_at,
                if_due=if_due,
                encoder=self.encoder,
            )
        )

    def cancel(self, queue: str, message_id: str) -> None:
        """Take back a message that nobody holds; one that is gone already is no error.

        Raises:
            MessageClaimed: too late, someone holds it.
        """
        self.call(messages.delete_message(queue, message_id))

    def delete_message(self, queue: str, message_id: str, *, claim_id: str | None = None) -> None:
        """Delete one message; a claimed one needs its claim's id, an absent one is no error.

        Raises:
            MessageClaimed: someone holds it, and no claim id was given.
            ClaimLost: that claim does not hold it (any more).
        """
        self.call(messages.delete_message(queue, message_id, claim_id=claim_id))

    def delete_messages(
        self,
        queue: str,
        ids: Iterable[str],
        *,
        claim_ids: Iterable[str] | None = None,
        force: bool = False,
    ) -> None:
        """Delete messages that these claims hold, all or none per page.

        `force=True`, instead of claim ids, deletes them whoever holds them.

        Raises:
            ClaimLost: one of them is not held by these claims (any more).
            ValueError: neither claim ids nor force was given.
        """
        if claim_ids is not None:
            claim_ids = arguments.texts("claim_ids", claim_ids, "ids")
        for part in chunks(arguments.texts("ids", ids, "ids"), self.page_size):
            self.call(messages.delete_messages(queue, part, claim_ids=claim_ids, force=force))

    def pop(
        self,
        queue: str,
        limit: int = 1,
        *,
        details: bool = False,
        raw: bool = False,
        wait: float = 0,
    ) -> list[Message]:
        """Take messages out at once, at most once: a lost answer loses them.

        With `wait` it waits up to so many seconds for one. `details` asks for claim counts, times,
        headers and attempts.
        """
        details = details or self.tracing is not None
        make = partial(messages.pop, queue, limit, details=details, raw=raw)
        return self._until_found(make, wait)
