r"""The keys that sign pre-signed URLs, and the signatures of a queue that were revoked.

A signature in upstream's form is 64 hexadecimal digits, by the key without an id. One of ours is
`id.epoch.digits`: the id of its key, and how often the queue's signatures had been revoked when it
was made; both are behind the signed text, each behind the separator. So a key is found at once,
keys are replaced one by one, and a revocation needs no clock.
"""

import hmac
import json
from collections.abc import Mapping
from hashlib import sha256

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.records import retried
from zaqar_lite.storage.management import ManagementStore

SEPARATOR = "\\n"
KIND = "signatures"
NO_ID = ""
"""The id of the key that signs in upstream's form."""
_LONGEST_EPOCH = 15


class Keyring:
    """Keys by their ids: all of them verify, one signs. `NO_ID` may be among them."""

    def __init__(self, keys: Mapping[str, str], current: str | None) -> None:
        self._keys = {key_id: secret.encode() for key_id, secret in keys.items()}
        self._current = current

    @property
    def can_sign(self) -> bool:
        """Whether there is a key that signs."""
        return self._current is not None

    def sign(self, text: str, epoch: int) -> str:
        """Sign a text for a queue whose signatures were revoked `epoch` times."""
        key_id = self._current or NO_ID
        if key_id == NO_ID and not epoch:
            return _digest(self._keys[key_id], text)
        digits = _digest(self._keys[key_id], _extended(text, key_id, str(epoch)))
        return f"{key_id}.{epoch}.{digits}"

    def fits(self, text: str, signature: str) -> bool:
        """Tell whether one of the keys signed a text, in constant time for each key."""
        key_id, _, rest = signature.partition(".")
        if not rest:
            key_id, digits = NO_ID, signature
        else:
            epoch, _, digits = rest.partition(".")
            text = _extended(text, key_id, epoch)
        secret = self._keys.get(key_id)
        if secret is None:
            return False
        return hmac.compare_digest(_digest(secret, text).encode(), digits.encode())


class Revocations:
    """How often the signatures of a queue were revoked; deleting the queue changes nothing."""

    def __init__(self, management: ManagementStore) -> None:
        self._management = management

    async def epoch(self, queue: QueueRef) -> int:
        """How often the signatures of a queue were revoked."""
        return (await self._read(queue))[0]

    async def admits(self, queue: QueueRef, signature: str) -> bool:
        """Tell whether a valid signature was made after the last revocation."""
        _, _, rest = signature.partition(".")
        text = rest.partition(".")[0] or "0"
        known = await self.epoch(queue)
        return len(text) <= _LONGEST_EPOCH and text.isdigit() and int(text) == known

    @retried("The record of the queue's signatures")
    async def revoke(self, queue: QueueRef) -> None:
        """Make invalid all signatures of a queue that were made until now."""
        epoch, version = await self._read(queue)
        value = json.dumps({"epoch": epoch + 1}).encode()
        await self._management.put_record(KIND, queue.project, queue.name, value, expected=version)

    async def _read(self, queue: QueueRef) -> tuple[int, int]:
        record = await self._management.get_record(KIND, queue.project, queue.name)
        return (0, 0) if record is None else (json.loads(record.value)["epoch"], record.version)


def _extended(text: str, key_id: str, epoch: str) -> str:
    return SEPARATOR.join((text, key_id, epoch))


def _digest(secret: bytes, text: str) -> str:
    return hmac.new(secret, text.encode(), sha256).hexdigest()
