"""Signatures of webhooks, as Standard Webhooks 1.0 has them: `verify` is for who receives them.

    from zaqar_lite.webhooks import verify

    verify(request.headers, request.get_data(), "whsec_...")   # raises InvalidSignature

The signature covers the id, the time and the raw bytes of the body, so verify before parsing.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping

PREFIX = "whsec_"
TOLERANCE = 300
"""Seconds that a delivery's time may lie before or after the receiver's."""
_VERSION = "v1"


class InvalidSignature(ValueError):
    """The request was not signed with this secret, or not lately."""


def sign(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign a body; the answer is one signature of the header `webhook-signature`."""
    text = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), text, hashlib.sha256).digest()
    return f"{_VERSION},{base64.b64encode(digest).decode()}"


def signed_headers(
    secrets: Iterable[str], *, message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """The three headers of a delivery, with a signature by each secret."""
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
    """Check that a request was signed with `secret`, lately; answer its `webhook-id`.

    The id stays the same when a delivery is repeated: who has seen it already is done.

    Raises:
        InvalidSignature: a header is missing, the time is too far off, or no signature is right.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        message_id = found["webhook-id"]
        timestamp = int(found["webhook-timestamp"])
        signatures = found["webhook-signature"]
    except (KeyError, ValueError):
        raise InvalidSignature(
            "The headers webhook-id, -timestamp and -signature are needed."
        ) from None
    if abs((time.time() if now is None else now) - timestamp) > tolerance:
        raise InvalidSignature(f"The time of the delivery is more than {tolerance} seconds off.")
    expected = sign(secret, message_id=message_id, timestamp=timestamp, body=body).encode()
    for signature in signatures.split(" "):
        if hmac.compare_digest(expected, signature.encode()):
            return message_id
    raise InvalidSignature("No signature of the request was made with this secret.")


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise InvalidSignature("The secret is no base64 behind 'whsec_'.") from None
