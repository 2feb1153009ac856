"""Receipt handles: which hand-out of which message, signed, so that nobody can make one up.

A handle is URL-safe base64 of the message's id, the claim's id and a MAC over both and the queue.
The key is a record of the store, so all processes and servers of a store have the same one.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import NamedTuple

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.records import Kind
from zaqar_lite.sqs.errors import SqsError
from zaqar_lite.storage.management import ManagementStore

KIND = "receipt-key"
_ID_SIZE = 16
_LENGTH = 64
"""Characters of a handle: three times 16 bytes."""


class Receipt(NamedTuple):
    """What a handle stands for."""

    message_id: str
    claim_id: str


class Receipts:
    """Sign and read receipt handles; `load` must have been called."""

    def __init__(self, management: ManagementStore) -> None:
        self._kind = Kind[bytes](management, KIND, "The key of receipt handles", bytes)
        self._key = b""

    async def load(self) -> None:
        """Read the key, or make it where there is none: of racing makers one wins."""
        if not self._key:

            async def keep(key: bytes | None) -> bytes:
                return key or secrets.token_bytes(32)

            self._key, _ = await self._kind.write("", "current", keep)

    def sign(self, queue: QueueRef, message_id: str, claim_id: str) -> str:
        """Make the handle of a message that a claim holds."""
        ids = bytes.fromhex(message_id) + bytes.fromhex(claim_id)
        return urlsafe_b64encode(ids + self._mac(queue, ids)).decode()

    def read(self, queue: QueueRef, handle: str) -> Receipt:
        """Read a handle of a message of this queue.

        Raises:
            SqsError: ReceiptHandleIsInvalid, nobody was given this handle.
        """
        try:
            found = urlsafe_b64decode(handle) if len(handle) == _LENGTH else b""
        except ValueError:
            found = b""
        ids, mac = found[: 2 * _ID_SIZE], found[2 * _ID_SIZE :]
        if not hmac.compare_digest(self._mac(queue, ids), mac):
            raise SqsError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
        return Receipt(ids[:_ID_SIZE].hex(), ids[_ID_SIZE:].hex())

    def _mac(self, queue: QueueRef, ids: bytes) -> bytes:
        project, name = queue.project.encode(), queue.name.encode()
        text = b"%d:%b%b/%b" % (len(project), project, name, ids)
        return blake2b(text, key=self._key, digest_size=_ID_SIZE).digest()
