"""The AMQP messages for Zaqar, which a publisher writes and a relay reads."""

import hashlib
import json
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import cast

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from zaqar_lite.client import RawBody
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import (
    MAX_BODY_DEPTH,
    MAX_IDEMPOTENCY_KEY,
    MAX_PROJECT_ID,
    MIN_MESSAGE_TTL,
    Limits,
)
from zaqar_lite.domain.metadata import is_queue_name

LIMITS = Limits()

DUE = "due-ms"  # when the message is due: milliseconds since 1970, an integer
PROJECT = "zaqar-project"
QUEUE = "zaqar-queue"
TTL = "zaqar-ttl"  # seconds, counted from the post to Zaqar
FORWARD = "zaqar-header-"  # headers with this prefix become headers of the message in Zaqar

UNTIL = "until-ms"  # how long an id is cancelled: milliseconds since 1970, an integer

# What the relay says of a message that it parks.
FAILED_STATUS = "relay-status"
FAILED_REASON = "relay-reason"

ENVELOPE = 1024  # bytes of a post that are not the body: ttl, delay, key, punctuation

_KEY = re.compile(rf"[\x20-\x7e]{{1,{MAX_IDEMPOTENCY_KEY}}}")
# It becomes an HTTP header, so it has no line breaks.
_PROJECT = re.compile(rf"[\x21-\x7e]{{1,{MAX_PROJECT_ID}}}")
_TRACE = re.compile(r"x-(first-|last-)?death(-.*)?|x-delivery-count|x-acquired-count")


def copy_of(message: aio_pika.abc.AbstractMessage, **headers: str | int) -> aio_pika.Message:
    """Return a message to publish (again): persistent, with further headers.

    Left out are the broker's own record of an earlier trip, by which it would take a second one for
    a loop and drop the message; an expiration, which would end the wait early; and the user id,
    which must be the publisher's own.
    """
    made = cast(aio_pika.Message, copy(message))
    kept = {name: value for name, value in message.headers.items() if not _TRACE.fullmatch(name)}
    made.headers = {**kept, **headers}
    made.delivery_mode = aio_pika.DeliveryMode.PERSISTENT
    made.expiration = made.user_id = None
    return made


def for_zaqar(
    queue: str,
    body: object,
    *,
    message_id: str,
    ttl: int = LIMITS.default_message_ttl,
    project: str = "default",
    headers: Mapping[str, str] | None = None,
) -> aio_pika.Message:
    """Return the message that the relay posts to a Zaqar queue when it is due.

    Args:
        queue: the Zaqar queue.
        body: anything that JSON can say.
        message_id: 1..128 printable ASCII characters; posting it twice stores it once.
        ttl: seconds that the message lives in Zaqar, counted from its delivery there.
        project: the tenant.
        headers: for the message in Zaqar.

    Raises:
        Invalid: Zaqar could never take the message: found now, not in years.
    """
    _check_place(project, queue)
    if not _KEY.fullmatch(message_id):
        raise Invalid(f"a message id is 1..{MAX_IDEMPOTENCY_KEY} printable ASCII characters")
    if type(ttl) is not int or not MIN_MESSAGE_TTL <= ttl <= LIMITS.max_message_ttl:
        raise Invalid(
            f"a ttl is {MIN_MESSAGE_TTL}..{LIMITS.max_message_ttl} seconds from delivery, not {ttl}"
        )
    try:
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Invalid(f"the body is not JSON: {error}") from error
    # The rest of the envelope that it is posted in takes some bytes too.
    if len(data) > LIMITS.max_messages_post_size - ENVELOPE:
        raise Invalid(
            f"the body is {len(data)} bytes; Zaqar takes {LIMITS.max_messages_post_size} "
            f"in a request, {ENVELOPE} of them for what is around the body"
        )
    return aio_pika.Message(
        data,
        content_type="application/json",
        message_id=message_id,
        headers={
            PROJECT: project,
            QUEUE: queue,
            TTL: ttl,
            **{FORWARD + name: value for name, value in (headers or {}).items()},
        },
    )


def _check_place(project: str, queue: str) -> None:
    """Refuse a project or a queue that the server would refuse."""
    if not _PROJECT.fullmatch(project):
        raise Invalid(f"a project is up to 256 printable ASCII characters, not {project!r}")
    if not is_queue_name(queue):
        raise Invalid(f"a queue's name is 1..64 letters, digits, '_', '-' and '.', not {queue!r}")


@dataclass(frozen=True, slots=True)
class ZaqarMessage:
    """What an AMQP message asks to be posted."""

    project: str
    queue: str
    body: RawBody
    ttl: int | None
    key: str
    headers: dict[str, str] | None

    @classmethod
    def read(cls, message: AbstractIncomingMessage) -> "ZaqarMessage":
        """Read it from headers and body.

        Raises:
            Invalid: something that can never be posted; the text says what.
        """
        queue = str(message.headers.get(QUEUE, ""))
        project = str(message.headers.get(PROJECT, "default"))
        _check_place(project, queue)
        if not message.message_id:
            raise Invalid("the message has no message id")
        forward = {
            name.removeprefix(FORWARD): str(value)
            for name, value in message.headers.items()
            if name.startswith(FORWARD)
        }
        key = message.message_id
        if not _KEY.fullmatch(key):
            key = hashlib.sha256(key.encode()).hexdigest()
        ttl = message.headers.get(TTL)
        if ttl is not None:
            if isinstance(ttl, bool) or not re.fullmatch("[0-9]{1,18}", str(ttl)):
                raise Invalid(f"the header {TTL} is not a whole number of seconds: {ttl!r}")
            ttl = int(str(ttl))
        return cls(project, queue, _checked(message.body), ttl, key, forward or None)


def _checked(body: bytes) -> RawBody:
    """Return a body unchanged if it is one JSON value, so that it can't break the envelope."""
    try:
        json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON (at most {MAX_BODY_DEPTH} deep): {error}") from error
    return RawBody(body)
