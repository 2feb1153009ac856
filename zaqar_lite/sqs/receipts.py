"""Receipt handles: which hand-out of which message, signed, so that nobody can make one up.

A handle is the message's id, the claim's id, and a MAC over the queue and both, all in hex. The key
is a record of the store, so all processes and servers of a store have the same one.
"""

import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b
from hmac import compare_digest

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.records import Kind
from zaqar_lite.sqs.errors import SqsError, missing
from zaqar_lite.storage.management import ManagementStore

KIND = "receipt-key"
_DIGITS = 32
"""Hex digits of an id, and of a MAC."""
Receipt = tuple[str, str]
"""What a handle stands for: the ids of a message and of the claim that held it."""


class Receipts:
    """Sign and read receipt handles; `load` must have been called."""

    def __init__(self, management: ManagementStore) -> None:
        self._kind = Kind[bytes](management, KIND, "The key of receipt handles", bytes)
        self._key = b""

    async def load(self) -> None:
        """Read the key, or make it where there is none: of racing makers one wins."""
        if not self._key:
            self._key, _ = await self._kind.write(
                "", "current", lambda key: key or secrets.token_bytes(32)
            )

    def signer(self, queue: QueueRef, claim_id: str) -> Callable[[str], str]:
        """What makes the handles of a claim's messages, by their ids."""
        text = f"{len(queue.project)}:{queue.project}{queue.name}/{claim_id}/"  # one way to cut it
        mac = blake2b(text.encode(errors="surrogatepass"), key=self._key, digest_size=_DIGITS // 2)

        def sign(message_id: str) -> str:
            continued = mac.copy()
            continued.update(message_id.encode())
            return f"{message_id}{claim_id}{continued.hexdigest()}"

        return sign

    def read(self, queue: QueueRef, handles: Sequence[str]) -> list[Receipt | SqsError]:
        """Read handles of messages of this queue; ReceiptHandleIsInvalid for what nobody was given.

        Most of a batch are of one claim, whose part of the MAC is computed once.
        """
        signers: dict[str, Callable[[str], str]] = {}
        found: list[Receipt | SqsError] = []
        for handle in handles:
            message_id, claim_id = handle[:_DIGITS], handle[_DIGITS : 2 * _DIGITS]
            if claim_id not in signers:
                signers[claim_id] = self.signer(queue, claim_id)
            if handle.isascii() and compare_digest(handle, signers[claim_id](message_id)):
                found.append((message_id, claim_id))
            else:
                wrong = SqsError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
                found.append(wrong if handle else missing("ReceiptHandle"))
        return found
