"""Sign webhooks as Standard Webhooks 1.0 specifies, and verify them in a receiver.

    from zaqar_lite.webhooks import verify

    verify(request.headers, request.get_data(), "whsec_...")   # raises InvalidSignature

The signature covers the id, the time and the raw bytes of the body, so verify before parsing.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping

PREFIX = "whsec_"
TOLERANCE = 300
"""How many seconds the time of a delivery may lie before or after the receiver's."""
_VERSION = "v1"


class InvalidSignature(ValueError):
    """The request was not signed with this secret, or its time is too far from the receiver's."""


def sign(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature of a body, for the header `webhook-signature`.

    Raises:
        InvalidSignature: the secret is not base64 after `whsec_`, or empty.
    """
    text = f"{message_id}.{timestamp}.".encode(errors="surrogateescape") + body
    digest = hmac.new(_key(secret), text, hashlib.sha256).digest()
    return f"{_VERSION},{base64.b64encode(digest).decode()}"


def signed_headers(
    secrets: Iterable[str], *, message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the three headers of a delivery, with one signature for each secret."""
    signatures = [
        sign(secret, message_id=message_id, timestamp=timestamp, body=body) for secret in secrets
    ]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance: int = TOLERANCE,
    now: float | None = None,
) -> str:
    """Check that a request was signed with `secret`; return its `webhook-id`.

    A delivery that is repeated has the same id, so a receiver can tell that it has seen it.
    `tolerance` is how many seconds the time of the delivery may lie before or after `now`, which
    is the current time unless given.

    Raises:
        InvalidSignature: a header is missing, the time is too far off, or no signature matches.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        message_id = found["webhook-id"]
        timestamp = int(found["webhook-timestamp"])
        signatures = found["webhook-signature"]
    except (KeyError, ValueError):
        raise InvalidSignature(
            "The request needs the headers webhook-id, webhook-timestamp and webhook-signature."
        ) from None
    if abs(int(time.time() if now is None else now) - timestamp) > tolerance:
        raise InvalidSignature(f"The time of the delivery is more than {tolerance} seconds off.")
    expected = sign(secret, message_id=message_id, timestamp=timestamp, body=body).encode()
    for signature in signatures.split(" "):
        if hmac.compare_digest(expected, signature.encode(errors="surrogateescape")):
            return message_id
    raise InvalidSignature("No signature of the request was made with this secret.")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key:  # with an empty one anybody could sign
        raise InvalidSignature("The secret must be base64 after 'whsec_', and not empty.")
    return key
