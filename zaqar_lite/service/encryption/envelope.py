r"""The form of a sealed body, and the cipher: AES-256-GCM (NIST SP 800-38D).

A sealed body is a JSON text, so that every store and every tool that reads bodies takes it:

    "\u0001sealed:1:<data key>:<origin queue>:<base64 of nonce and ciphertext>"

The nonce has 96 random bits; the tag of 128 bits also covers the version, the data key, the project
and the queue that the message was posted to. The ciphertext is of the JSON as it was posted.
"""

import base64
import os
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from zaqar_lite.domain.sealed import PREFIX

KEY_BYTES = 32
_NONCE = 12


class Damaged(Exception):
    """What was sealed cannot be opened: it is not what was stored, or of another project."""


class Envelope(NamedTuple):
    """A sealed body, in its parts."""

    key_id: str
    origin: str
    sealed: bytes


def read(body: bytes) -> Envelope:
    """Cut a sealed body into its parts.

    Raises:
        Damaged: it does not have them.
    """
    parts = body[len(PREFIX) : -1].split(b":")
    try:
        key_id, origin, text = parts
        return Envelope(key_id.decode("ascii"), origin.decode("ascii"), base64.b64decode(text))
    except ValueError as error:
        message = "the body is not in the form of a sealed one"
        raise Damaged(message) from error


def seal(cipher: AESGCM, key_id: str, project: str, origin: str, body: bytes) -> bytes:
    """Seal a body, posted to the queue `origin`."""
    nonce = os.urandom(_NONCE)
    sealed = nonce + cipher.encrypt(nonce, body, _bound_to(key_id, project, origin))
    text = base64.b64encode(sealed)
    return b'%b%b:%b:%b"' % (PREFIX, key_id.encode(), origin.encode(), text)


def unseal(cipher: AESGCM, project: str, envelope: Envelope) -> bytes:
    """Return the body as it was posted.

    Raises:
        Damaged: it was changed, or sealed for another project.
    """
    nonce, sealed = envelope.sealed[:_NONCE], envelope.sealed[_NONCE:]
    try:
        bound = _bound_to(envelope.key_id, project, envelope.origin)
        return cipher.decrypt(nonce, sealed, bound)
    except (InvalidTag, ValueError) as error:
        message = "the body is not what was stored"
        raise Damaged(message) from error


def wrap(key: bytes, key_id: str, project: str, name: str, fresh: bytes) -> bytes:
    """Seal a project's data key `fresh` with the key `key_id` of the server."""
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, fresh, _bound_to(key_id, project, name))


def unwrap(key: bytes, key_id: str, project: str, name: str, wrapped: bytes) -> bytes:
    """Return a data key.

    Raises:
        Damaged: it was not wrapped with this key, for this project and name.
    """
    return unseal(AESGCM(key), project, Envelope(key_id, name, wrapped))


def _bound_to(key_id: str, project: str, name: str) -> bytes:
    return "\n".join(("1", key_id, name, project)).encode()
