"""Messages: post, list, read, edit, delete, pop."""

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any
from urllib.parse import unquote

from zaqar_lite.client import arguments, encoding
from zaqar_lite.client.bodies import Encoder, encode_body
from zaqar_lite.client.endpoints.pages import next_marker
from zaqar_lite.client.endpoints.paths import id_list, large, queue_path, with_query
from zaqar_lite.client.endpoints.resources import JSON_TYPE, NO_QUEUE, nothing
from zaqar_lite.client.errors import (
    ClaimLost,
    DueChanged,
    KeyReused,
    MessageClaimed,
    MessageNotFound,
    NotDelayed,
)
from zaqar_lite.client.models import Attempt, DeadLetter, Ids, Message, MessagePage
from zaqar_lite.client.records import reader
from zaqar_lite.client.wire import Call, Operation, Request, Response

_ATTEMPT = reader(Attempt)
_DEAD_LETTER = reader(DeadLetter)


def post(
    queue: str,
    encoded: Sequence[bytes],
    *,
    idempotency_key: str | None = None,
    keyed: bool = False,
) -> Call[Ids]:
    """Post entries made by `encoding.encode_message`; the result is their ids, in order.

    The key, a fresh one if none is given, stays the same over all retries of this call: a lost
    answer stores nothing twice. Where every entry is `keyed` by itself the request needs no key,
    and the server has one less to remember.
    """
    headers = dict(JSON_TYPE)
    arguments.takes("idempotency_key", idempotency_key, str)
    if idempotency_key is not None or not keyed:
        headers["Idempotency-Key"] = idempotency_key or uuid.uuid4().hex

    def read(response: Response) -> Ids:
        found = encoding.document(response)
        hrefs = found.get("resources") if isinstance(found, dict) else None
        if not isinstance(hrefs, list) or len(hrefs) != len(encoded):
            raise encoding.bad_answer(response, "it must name one resource per message posted")
        ids = [str(href).rpartition("/")[2] for href in hrefs]
        replayed = response.headers.get("idempotent-replayed") == "true"
        if replayed and idempotency_key is None and not keyed:
            # Nobody else knows a fresh key: the first try of this call stored them.
            return Ids(ids)
        return Ids(ids, [str(one) for one in found.get("duplicates") or ()])

    body = encoding.envelope(encoded)
    meanings = {**NO_QUEUE, 409: KeyReused}
    return Call(
        Request("POST", queue_path(queue, "messages"), headers, body),
        read,
        meanings,
        operation=Operation("send", "send", queue, entries=encoded),
    )


def list_messages(
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
    wait: int = 0,
) -> Call[MessagePage]:
    """Read one page of messages, claiming none of them."""
    arguments.takes("limit", limit, Integral)
    arguments.takes("marker", marker, str)
    arguments.takes("until", until, str, "the id of a message")
    path = with_query(
        queue_path(queue, "messages"),
        marker=marker,
        until=until,
        limit=limit,
        large=large(limit),
        echo=echo,
        include_claimed=include_claimed or None,
        include_delayed=include_delayed or None,
        details=details or None,
        wait=wait or None,
    )

    def read(response: Response) -> MessagePage:
        messages = read_messages(queue, response, raw=raw)
        return MessagePage(messages, next_marker(encoding.document(response)) if messages else None)

    return Call(Request("GET", path, {}, wait=wait), read, NO_QUEUE)


def get_message(queue: str, message_id: str, *, details: bool = False) -> Call[Message]:
    """Read one message, whether it is delayed, claimed or neither."""
    path = with_query(queue_path(queue, "messages", message_id), details=details or None)
    return Call(Request("GET", path, {}), lambda r: _one(queue, r), {404: MessageNotFound})


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


def edit(
    queue: str,
    message_id: str,
    *,
    body: object = ...,
    ttl: int | None = None,
    delay: int | None = None,
    deliver_at: dt.datetime | None = None,
    if_due: dt.datetime | None = None,
    encoder: Encoder | None = None,
) -> Call[Message]:
    """Change a message that is still delayed, with `if_due` only where it is due then.

    Raises:
        ValueError: nothing to change was given.
    """
    wait = encoding.seconds_until(delay, deliver_at)
    parts: list[bytes] = []
    if body is not ...:
        parts.append(b'"body":' + encode_body(body, encoder))
    if ttl is not None:
        parts.append(b'"ttl":%d' % arguments.whole("ttl", ttl))
    if wait is not None:
        parts.append(b'"delay":%d' % arguments.whole("delay", wait))
    if not parts:
        message = "nothing to change: give body, ttl, delay or deliver_at"
        raise ValueError(message)
    path = queue_path(queue, "messages", message_id)
    headers = dict(JSON_TYPE)
    arguments.zoned("if_due", if_due)
    if if_due is not None:
        headers["If-Match"] = f'"{if_due.isoformat()}"'
    request = Request("PATCH", path, headers, b"{" + b",".join(parts) + b"}")
    errors = {404: MessageNotFound, 409: NotDelayed, 412: DueChanged}
    return Call(request, lambda r: _one(queue, r), errors)


def delete_message(queue: str, message_id: str, *, claim_id: str | None = None) -> Call[None]:
    """Delete one message; an absent one is no error, a claimed one needs its claim's id."""
    arguments.takes("claim_id", claim_id, str)
    path = with_query(queue_path(queue, "messages", message_id), claim_id=claim_id)
    meanings = {403: MessageClaimed} if claim_id is None else {400: ClaimLost, 403: ClaimLost}
    operation = None if claim_id is None else Operation("settle", "delete", queue, ids=[message_id])
    return Call(Request("DELETE", path, {}), nothing, meanings, operation=operation)


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
    return Call(Request("DELETE", path, {}), nothing, {403: ClaimLost}, operation=operation)


def pop(
    queue: str, limit: int = 1, *, details: bool = False, raw: bool = False, wait: int = 0
) -> Call[list[Message]]:
    """Take messages out at once: at most once, for a lost answer loses them.

    So it is not sent again after an answer was lost: that would take, and maybe lose, more.
    """
    arguments.takes("limit", limit, Integral)
    path = with_query(
        queue_path(queue, "messages"),
        pop=limit,
        large=large(limit),
        details=details or None,
        wait=wait or None,
    )
    request = Request("DELETE", path, {}, wait=wait)
    return Call(
        request,
        lambda r: read_messages(queue, r, raw=raw),
        resend=False,
        operation=Operation("receive", "pop", queue),
    )


def read_messages(queue: str, response: Response, *, raw: bool = False) -> list[Message]:
    """Read the messages of a page, of a claim, or of a pop."""
    entries = encoding.objects(response, "messages")
    if raw:
        for entry, body in zip(entries, encoding.raw_bodies(response), strict=True):
            entry["body"] = body
    return [read_message(queue, entry) for entry in entries]


def read_message(queue: str, entry: Mapping[str, Any]) -> Message:
    """Read one message object; keys that this version does not know are left out."""
    href = entry.get("href", "")
    letter, attempts = entry.get("dead_letter"), entry.get("attempts")
    path, _, query = href.partition("?")
    return Message(
        queue=queue,
        id=entry.get("id") or path.rpartition("/")[2],
        body=entry["body"],
        ttl=entry["ttl"],
        age=entry["age"],
        href=href,
        claim_id=_claim_id(query) or entry.get("claim_id"),
        checksum=entry.get("checksum"),
        claim_count=entry.get("claim_count"),
        created=encoding.instant(entry.get("created")),
        delay_expires=encoding.instant(entry.get("delay_expires")),
        headers=entry.get("headers"),
        dead_letter=None if letter is None else _DEAD_LETTER(letter),
        failure_count=entry.get("failure_count"),
        parked_until=encoding.instant(entry.get("parked_until")),
        attempts=None if attempts is None else tuple(map(_ATTEMPT, attempts)),
        group=entry.get("group"),
    )


def _claim_id(query: str) -> str | None:
    """Read the claim id of an href; a page has thousands, and parse_qs is slow."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "claim_id":
            return unquote(value)
    return None


def _one(queue: str, response: Response) -> Message:
    return read_message(queue, encoding.json_object(response))
