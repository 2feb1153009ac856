"""Messages: post, list, read, edit, delete, pop."""

import contextlib
import dataclasses
import datetime as dt
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any
from urllib.parse import unquote

from zaqar_lite.client import arguments, serialization
from zaqar_lite.client.base_client import BaseClient, chunks
from zaqar_lite.client.calls import Call, Operation, Request, Response, bad_answer
from zaqar_lite.client.endpoints.requests import (
    JSON_TYPE,
    NO_QUEUE,
    ask,
    id_list,
    large,
    next_marker,
    queue_path,
    tell,
    with_query,
)
from zaqar_lite.client.errors import (
    BadRequest,
    ClaimLost,
    DueChanged,
    KeyReused,
    MessageClaimed,
    MessageNotFound,
    NotDelayed,
)
from zaqar_lite.client.models import Ids, Message, MessagePage, NewMessage
from zaqar_lite.client.serialization import encode_body
from zaqar_lite.client.steps import Page, Pages, Steps, listing, method

_to_message = serialization.converter(Message)


class Messages(BaseClient):
    """Post, list, read, edit, delete and pop messages."""

    @method
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
    ) -> Steps[str]:
        """Post one message and return its id; `NewMessage` explains the arguments."""
        message = arguments.options_of(NewMessage, locals())
        encoded = [self.encode(queue, message, alone=True)]
        ids = yield from self._exchange(post(queue, encoded))
        return ids[0]

    @method
    def post_batch(
        self, queue: str, batch: Iterable[object], *, idempotency_key: str | None = None
    ) -> Steps[Ids]:
        """Post messages (NewMessage, or bodies) in one request; return their ids in order.

        The same messages posted again with the same `idempotency_key` are stored once, and are
        the `duplicates` of what is returned.

        Raises:
            KeyReused: a key stands for another message; nothing was stored.
        """
        given = list(arguments.several(batch, "post_batch"))
        keys = [one.idempotency_key for one in given if isinstance(one, NewMessage)]
        keyed = len(keys) == len(given) and None not in keys
        encoded = [self.encode(queue, one) for one in given]
        return self._exchange(post(queue, encoded, idempotency_key=idempotency_key, keyed=keyed))

    @listing
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
    ) -> Pages[Message]:
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
        selection = arguments.options_of(Selection, locals())
        return message_pages(self, queue, selection, marker=marker, wait=wait)

    @method
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
    ) -> Steps[MessagePage]:
        """Return one page of `list_messages`, with the marker of the next."""
        selection = arguments.options_of(Selection, locals())
        size = limit or self.page_size
        make = partial(list_messages, queue, selection, marker=marker, limit=size)
        return self._until_found(make, wait)

    @method
    def get_message(self, queue: str, message_id: str, *, details: bool = False) -> Steps[Message]:
        """Return a message, whatever its state.

        Raises:
            MessageNotFound: there is none (any more).
        """
        path = with_query(queue_path(queue, "messages", message_id), details=details or None)
        read = partial(read_message, queue)
        return self._exchange(ask("GET", path, read, meanings={404: MessageNotFound}))

    @listing
    def get_messages(
        self, queue: str, ids: Iterable[str], *, details: bool = False, raw: bool = False
    ) -> Pages[Message]:
        """Yield those of the messages that exist, in no special order."""
        parts = deque(chunks(arguments.texts("ids", ids, "ids"), self.page_size))

        def page(_: str | None) -> Steps[Page[Message]]:
            found: list[Message] = []
            if parts:
                call = get_messages(queue, parts.popleft(), details=details, raw=raw)
                with contextlib.suppress(MessageNotFound):
                    found = yield from self._exchange(call)
            return Page(found, "more" if parts else None)

        return page

    @method
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
    ) -> Steps[Message]:
        """Change a message that is still delayed; what is not given stays.

        With `if_due` it is changed only where it is due then (`Message.delay_expires`).

        Raises:
            NotDelayed: too late.
            DueChanged: somebody has moved it.
            MessageNotFound: there is none (any more).
            ValueError: nothing to change was given.
        """
        parts: list[bytes] = []
        if body is not ...:
            parts.append(b'"body":' + encode_body(body, self.encoder))
        wait = serialization.seconds_until(delay, deliver_at)
        for name, seconds in (("ttl", ttl), ("delay", wait)):
            if seconds is not None:
                parts.append(b'"%b":%d' % (name.encode(), arguments.whole(name, seconds)))
        if not parts:
            message = "nothing to change: give body, ttl, delay or deliver_at"
            raise ValueError(message)
        headers = dict(JSON_TYPE)
        arguments.zoned("if_due", if_due)
        if if_due is not None:
            headers["If-Match"] = f'"{if_due.isoformat()}"'
        path = queue_path(queue, "messages", message_id)
        request = Request("PATCH", path, headers, b"{" + b",".join(parts) + b"}")
        errors = {404: MessageNotFound, 409: NotDelayed, 412: DueChanged}
        read = partial(read_message, queue)
        return self._exchange(Call(request, lambda r: read(serialization.json_object(r)), errors))

    @method
    def cancel(self, queue: str, message_id: str) -> Steps[None]:
        """Take back a message that nobody holds; one that is gone already is no error.

        Raises:
            MessageClaimed: too late, someone holds it.
        """
        return self._exchange(delete_message(queue, message_id))

    @method
    def delete_message(
        self, queue: str, message_id: str, *, claim_id: str | None = None
    ) -> Steps[None]:
        """Delete one message; a claimed one needs its claim's id, an absent one is no error.

        Raises:
            MessageClaimed: someone holds it, and no claim id was given.
            ClaimLost: that claim does not hold it (any more).
        """
        return self._exchange(delete_message(queue, message_id, claim_id=claim_id))

    @method
    def delete_messages(
        self,
        queue: str,
        ids: Iterable[str],
        *,
        claim_ids: Iterable[str] | None = None,
        force: bool = False,
    ) -> Steps[None]:
        """Delete messages that these claims hold, all or none per page.

        `force=True`, instead of claim ids, deletes them whoever holds them.

        Raises:
            ClaimLost: one of them is not held by these claims (any more).
            ValueError: neither claim ids nor force was given.
        """
        if claim_ids is not None:
            claim_ids = arguments.texts("claim_ids", claim_ids, "ids")
        for part in chunks(arguments.texts("ids", ids, "ids"), self.page_size):
            call = delete_messages(queue, part, claim_ids=claim_ids, force=force)
            yield from self._exchange(call)

    @method
    def pop(
        self,
        queue: str,
        limit: int = 1,
        *,
        details: bool = False,
        raw: bool = False,
        wait: float = 0,
    ) -> Steps[list[Message]]:
        """Take messages out at once, at most once: a lost answer loses them.

        With `wait` it waits up to so many seconds for one. `details` asks for claim counts, times,
        headers and attempts.
        """
        arguments.takes("limit", limit, Integral)
        details = details or self.tracing is not None

        def make(wait: int) -> Call[list[Message]]:
            # Not sent again after an answer was lost: that would take, and maybe lose, more.
            path = with_query(
                queue_path(queue, "messages"),
                pop=limit,
                large=large(limit),
                details=details or None,
                wait=wait or None,
            )
            return Call(
                Request("DELETE", path, {}, wait=wait),
                lambda r: read_messages(queue, r, raw=raw),
                resend=False,
                operation=Operation("receive", "pop", queue),
            )

        return self._until_found(make, wait)


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Which messages a list shows; `Messages.list_messages` explains the fields."""

    until: str | None = None
    echo: bool = True
    include_claimed: bool = False
    include_delayed: bool = False
    details: bool = False
    raw: bool = False


def post(
    queue: str,
    encoded: Sequence[bytes],
    *,
    idempotency_key: str | None = None,
    keyed: bool = False,
) -> Call[Ids]:
    """Post entries made by `serialization.encode_message`; the result is their ids, in order.

    The key, a fresh one if none is given, stays the same over all retries of this call: a lost
    answer stores nothing twice. Where every entry is `keyed` by itself the request needs no key,
    and the server has one less to remember.
    """
    headers = dict(JSON_TYPE)
    arguments.takes("idempotency_key", idempotency_key, str)
    if idempotency_key is not None or not keyed:
        headers["Idempotency-Key"] = idempotency_key or uuid.uuid4().hex

    def read(response: Response) -> Ids:
        found = serialization.document(response)
        hrefs = found.get("resources") if isinstance(found, dict) else None
        if not isinstance(hrefs, list) or len(hrefs) != len(encoded):
            raise bad_answer(response, "it must name one resource per message posted")
        ids = [str(href).rpartition("/")[2] for href in hrefs]
        replayed = response.headers.get("idempotent-replayed") == "true"
        if replayed and idempotency_key is None and not keyed:
            # Nobody else knows a fresh key: the first try of this call stored them.
            return Ids(ids)
        return Ids(ids, [str(one) for one in found.get("duplicates") or ()])

    body = serialization.envelope(encoded)
    meanings = {**NO_QUEUE, 409: KeyReused}
    return Call(
        Request("POST", queue_path(queue, "messages"), headers, body),
        read,
        meanings,
        operation=Operation("send", "send", queue, entries=encoded),
    )


def list_messages(
    queue: str,
    selection: Selection,
    *,
    marker: str | None = None,
    limit: int | None = None,
    wait: int = 0,
) -> Call[MessagePage]:
    """Read one page of messages, claiming none of them."""
    arguments.takes("limit", limit, Integral)
    arguments.takes("marker", marker, str)
    arguments.takes("until", selection.until, str, "the id of a message")
    path = with_query(
        queue_path(queue, "messages"),
        marker=marker,
        until=selection.until,
        limit=limit,
        large=large(limit),
        echo=selection.echo,
        include_claimed=selection.include_claimed or None,
        include_delayed=selection.include_delayed or None,
        details=selection.details or None,
        wait=wait or None,
    )

    def read(response: Response) -> MessagePage:
        messages = read_messages(queue, response, raw=selection.raw)
        more = next_marker(serialization.document(response)) if messages else None
        return MessagePage(messages, more)

    return Call(Request("GET", path, {}, wait=wait), read, NO_QUEUE)


def get_messages(
    queue: str, ids: Iterable[str], *, details: bool = False, raw: bool = False
) -> Call[list[Message]]:
    """Read those of the messages that exist; none of them is MessageNotFound."""
    named = list(ids)
    path = with_query(
        queue_path(queue, "messages"),
        ids=id_list(named),
        large=large(len(named)),
        details=details or None,
    )
    request = Request("GET", path, {})
    return Call(request, lambda r: read_messages(queue, r, raw=raw), {404: MessageNotFound})


def delete_message(queue: str, message_id: str, *, claim_id: str | None = None) -> Call[None]:
    """Delete one message; an absent one is no error, a claimed one needs its claim's id."""
    arguments.takes("claim_id", claim_id, str)
    path = with_query(queue_path(queue, "messages", message_id), claim_id=claim_id)
    meanings = {403: MessageClaimed} if claim_id is None else {400: ClaimLost, 403: ClaimLost}
    operation = None if claim_id is None else Operation("settle", "delete", queue, ids=[message_id])
    return tell("DELETE", path, None, meanings, operation)


def delete_messages(
    queue: str, ids: Iterable[str], *, claim_ids: Iterable[str] | None, force: bool = False
) -> Call[None]:
    """Delete messages that these claims hold, all or none.

    `force=True`, instead of claim ids, deletes them whoever holds them.

    Raises:
        ValueError: neither or both were given. Zaqar's bulk delete ignores claims unless it is
            told about them, and would take messages out of another consumer's hands.
    """
    if (claim_ids is None) is not force:
        message = "give claim_ids, or force=True to delete whatever anyone holds"
        raise ValueError(message)
    claims = None if claim_ids is None else id_list(claim_ids)
    if claims == "":
        message = "claim_ids is empty"
        raise ValueError(message)
    named = list(ids)
    path = with_query(
        queue_path(queue, "messages"),
        ids=id_list(named),
        large=large(len(named)),
        claim_ids=claims,
    )
    operation = None if claims is None else Operation("settle", "delete", queue, ids=named)
    return tell("DELETE", path, None, {403: ClaimLost}, operation)


def message_pages(
    client: BaseClient,
    queue: str,
    selection: Selection,
    *,
    marker: str | None = None,
    wait: float = 0,
) -> Pages[Message]:
    """Return the pages of a queue's messages from a marker on: a small one, then large ones."""

    def page(after: str | None) -> Steps[Page[Message]]:
        limit = client.page_size if after is None else client.large_page
        make = partial(list_messages, queue, selection, marker=after or marker)
        try:
            found = yield from client._until_found(partial(make, limit=limit), wait)
        except BadRequest:
            if limit == client.page_size:
                raise
            client.large_page = client.page_size  # this server has no large pages
            found = yield from client._until_found(partial(make, limit=client.page_size), wait)
        return Page(found.messages, found.marker)

    return page


def read_messages(queue: str, response: Response, *, raw: bool = False) -> list[Message]:
    """Read the messages of a page, of a claim, or of a pop."""
    entries = serialization.objects(response, "messages")
    if raw:
        for entry, body in zip(entries, serialization.raw_bodies(response), strict=True):
            entry["body"] = body
    return [read_message(queue, entry) for entry in entries]


def read_message(queue: str, entry: Mapping[str, Any]) -> Message:
    """Read one message object; keys that this version does not know are left out."""
    href = entry.get("href", "")
    path, _, query = href.partition("?")
    named = {
        "queue": queue,
        "id": entry.get("id") or path.rpartition("/")[2],
        "href": href,
        "claim_id": _claim_id(query) or entry.get("claim_id"),
    }
    return _to_message({**entry, **named})


def _claim_id(query: str) -> str | None:
    """Read the claim id of an href; a page has thousands, and parse_qs is slow."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "claim_id":
            return unquote(value)
    return None
