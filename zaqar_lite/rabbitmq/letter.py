"""Read from an AMQP message what is to be posted to Zaqar."""

import hashlib
import json
from dataclasses import dataclass

from aio_pika.abc import AbstractIncomingMessage

from zaqar_lite.client import RawBody
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import MAX_BODY_DEPTH
from zaqar_lite.rabbitmq import headers as names


@dataclass(frozen=True, slots=True)
class Letter:
    """What an AMQP message asks to be posted."""

    project: str
    queue: str
    body: RawBody
    ttl: int | None
    key: str
    headers: dict[str, str] | None

    @classmethod
    def read(cls, message: AbstractIncomingMessage) -> "Letter":
        """Read it from headers and body.

        Raises:
            Invalid: something that can never be posted; the text says what.
        """
        queue = str(message.headers.get(names.QUEUE, ""))
        if not names.is_queue(queue):
            raise Invalid(f"the header {names.QUEUE} names no queue: {queue!r}")
        project = str(message.headers.get(names.PROJECT, "default"))
        if not names.is_project(project):
            raise Invalid(f"the header {names.PROJECT} is no project: {project!r}")
        if not message.message_id:
            raise Invalid("the message has no message id")
        forward = {
            name.removeprefix(names.FORWARD): str(value)
            for name, value in message.headers.items()
            if name.startswith(names.FORWARD)
        }
        key = message.message_id
        if not names.is_key(key):
            key = hashlib.sha256(key.encode()).hexdigest()
        return cls(
            project=project,
            queue=queue,
            body=_checked(message.body),
            ttl=_ttl(message.headers.get(names.TTL)),
            key=key,
            headers=forward or None,
        )


def _checked(body: bytes) -> RawBody:
    """Return a body unchanged if it is one JSON value, so that it can't break the envelope."""
    try:
        text = body.decode("utf-8")
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON (at most {MAX_BODY_DEPTH} deep): {error}") from error
    return RawBody(body)


def _ttl(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).isascii() or not str(value).isdigit():
        raise Invalid(f"the header {names.TTL} is not a whole number of seconds: {value!r}")
    return int(str(value))
