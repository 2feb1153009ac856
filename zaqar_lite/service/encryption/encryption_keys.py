r"""The keys of encrypted queues, and the sealing and opening of bodies with them.

The server's own keys lie in a file and never leave the process; the first of them is current. Each
project has data keys, which seal its messages, in records of the management store, sealed with a
key of the server:

    data-key          project, name = id    {"kek": key of the server, "wrapped": base64, "at": ms}
    data-key-current  project, name = "1"   {"id": data key}

A data key is replaced when it is 30 days old or has sealed 2^28 messages in one process (random
nonces of 96 bits allow 2^32), or when somebody asks; the earlier ones stay, to open what they
sealed. When the server's current key changes, a data key is wrapped anew as it is loaded.

A body is sealed with AES-256-GCM (NIST SP 800-38D), and is a JSON text again, so that every store
and every tool that reads bodies takes it:

    "\u0001sealed:1:<data key>:<origin queue>:<base64 of nonce and ciphertext>"

The nonce has 96 random bits; the tag of 128 bits also covers the version, the data key, the project
and the queue that the message was posted to. The ciphertext is of the JSON as it was posted.
"""

import base64
import binascii
import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec.structs import replace

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    ConfigurationError,
    Conflict,
    RecordChanged,
    RecordDamaged,
    Unavailable,
)
from zaqar_lite.domain.models import Message, QueueRef, Record
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.sealed import PREFIX, is_sealed
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.yielding import in_steps
from zaqar_lite.storage.management import ManagementStore

KEY_BYTES = 32
_NONCE = 12


class Damaged(Exception):
    """What was sealed cannot be opened: it is not what was stored, or of another project."""


class Envelope(NamedTuple):
    """A sealed body, in its parts."""

    key_id: str
    origin: str
    sealed: bytes


def read_envelope(body: bytes) -> Envelope:
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


KIND, CURRENT = "data-key", "data-key-current"
DAMAGED = "zaqar_lite_damaged"
"""The key that an object has which stands for what can't be opened."""
MAX_LISTED = 1_000
MAX_ROTATED = 100
_CACHED = 10_000
_FRESH_MS = 60_000
_LIFE_MS = 2_592_000_000
_MOST_SEALED = 1 << 28
_MAX_ROUNDS = 20


class DataKey(NamedTuple):
    """A key of a project as its owner sees it; `at` is when it was made (milliseconds)."""

    id: str
    server_key: str
    at: int
    current: bool


@dataclass(slots=True)
class _Loaded:
    id: str
    cipher: AESGCM
    made_at: int
    looked_at: int
    sealed: int = 0

    def is_worn(self, now_ms: int) -> bool:
        return now_ms - self.made_at > _LIFE_MS or self.sealed > _MOST_SEALED


def read_key_file(path: Path) -> Mapping[str, bytes]:
    """Read the server's keys: a line `id:base64 of 32 bytes` each, the current one first.

    Raises:
        ConfigurationError: it can't be read or holds no key; names the line, never the key.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"encryption_key_file {path} can't be read: {error}.") from error
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        key_id, _, text = line.strip().partition(":")
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES or not key_id or not key_id.isalnum() or key_id in keys:
            raise ConfigurationError(
                f"Line {number} of encryption_key_file {path} is no key: ID:KEY is needed, with an "
                "id of letters and digits that no other line has, and 32 bytes in base64. "
                "Make one: openssl rand -base64 32."
            )
        keys[key_id] = key
    if not keys:
        raise ConfigurationError(f"encryption_key_file {path} holds no key.")
    return keys


class EncryptionKeys:
    """Seal and open the bodies of encrypted queues."""

    def __init__(
        self, management: ManagementStore, keys: Mapping[str, bytes], clock: Clock
    ) -> None:
        self._management = management
        self._keys = keys
        self._server_key = next(iter(keys))
        self._clock = clock
        self._ciphers: Cache[tuple[str, str], AESGCM] = Cache(_CACHED)
        self._current: Cache[str, _Loaded] = Cache(_CACHED)

    async def seal(self, queue: QueueRef, new: Sequence[NewMessage]) -> list[NewMessage]:
        """Seal the bodies of a post to a queue.

        Raises:
            Unavailable: the project's key can't be had now; nothing was stored.
        """
        key = await self._sealing_key(queue.project, len(new))
        sealed: list[NewMessage] = []
        async for _, part in in_steps(new):
            for one in part:
                body = seal(key.cipher, key.id, queue.project, queue.name, one.body)
                sealed.append(replace(one, body=body))
        return sealed

    async def seal_body(self, queue: QueueRef, body: bytes) -> bytes:
        """Seal one body, of a message that is edited."""
        key = await self._sealing_key(queue.project, 1)
        return seal(key.cipher, key.id, queue.project, queue.name, body)

    async def open(self, project: str, messages: Iterable[Message]) -> None:
        """Put the posted bodies in place of sealed ones.

        Raises:
            Unavailable: a key can't be had now, or the server's key is not in its file any more.
        """
        for message in messages:
            if is_sealed(message.body):
                message.body = await self.open_body(project, message.body)

    async def open_in(self, project: str, notification: bytes) -> bytes:
        """Return a notification with the body that was posted.

        Raises:
            Unavailable: as `open`.
        """
        if PREFIX not in notification:
            return notification
        document = msgspec.json.decode(notification, type=dict[str, msgspec.Raw])
        if is_sealed(bytes(document.get("body", b""))):
            opened = await self.open_body(project, bytes(document["body"]))
            document["body"] = msgspec.Raw(opened)
        return msgspec.json.encode(document)

    async def open_body(self, project: str, body: bytes) -> bytes:
        """Return the body that was posted; one that was damaged is an object that says so.

        Raises:
            Unavailable: as `open`.
        """
        try:
            return await self._unseal(project, read_envelope(body))
        except Damaged as error:
            return json.dumps({DAMAGED: str(error)}).encode()

    async def seal_record(self, kind: str, project: str, name: str, value: bytes) -> bytes:
        """Seal the value of a record, which opens under its kind and name alone."""
        return await self.seal_body(QueueRef(project, _origin(kind, name)), value)

    async def open_record(self, record: Record) -> bytes:
        """Return the value that a record was given.

        Raises:
            RecordDamaged: it is not what was stored, or was stored under another kind or name.
            Unavailable: as `open`.
        """
        try:
            sealed = read_envelope(record.value)
            if sealed.origin != _origin(record.kind, record.name):
                raise Damaged("it is of another record")
            return await self._unseal(record.project, sealed)
        except Damaged as error:
            raise RecordDamaged(
                f"The {record.kind} {record.name} is sealed, and was damaged: delete it."
            ) from error

    async def _unseal(self, project: str, sealed: Envelope) -> bytes:
        return unseal(await self._cipher(project, sealed.key_id), project, sealed)

    async def rotate(self, project: str) -> None:
        """Seal what is posted from now on with a new key: here at once, elsewhere in a minute.

        Raises:
            Conflict: the project has too many keys.
        """
        known = await self._management.list_records(KIND, project, limit=MAX_ROTATED)
        if len(known) >= MAX_ROTATED:
            raise Conflict(f"A project may have {MAX_ROTATED} keys made by request.")
        seen = await self._management.get_record(CURRENT, project, "1")
        await self._make(project, 0 if seen is None else seen.version)

    async def list_keys(self, project: str) -> list[DataKey]:
        """List a project's data keys by age, at most 1,000, without the keys themselves."""
        pointer = await self._management.get_record(CURRENT, project, "1")
        current = None if pointer is None else json.loads(pointer.value)["id"]
        found = await self._management.list_records(KIND, project, limit=MAX_LISTED)
        stored = [(one.name, json.loads(one.value)) for one in found]
        listed = [DataKey(name, one["kek"], one["at"], name == current) for name, one in stored]
        return sorted(listed, key=lambda one: one.at)

    async def _sealing_key(self, project: str, count: int) -> _Loaded:
        now = self._clock.now_ms()
        key = self._current.get(project)
        if key is None or now - key.looked_at > _FRESH_MS or key.is_worn(now):
            key = await self._find_current(project, key, now)
        key.sealed += count
        return key

    async def _find_current(self, project: str, known: _Loaded | None, now: int) -> _Loaded:
        for _ in range(_MAX_ROUNDS):
            pointer = await self._management.get_record(CURRENT, project, "1")
            if pointer is None:
                await self._make(project, 0)
                continue
            key_id = json.loads(pointer.value)["id"]
            if known is not None and known.id == key_id:
                known.looked_at = now
                key = known
            else:
                record = await self._management.get_record(KIND, project, key_id)
                if record is None:  # what it sealed can't be opened any more
                    await self._make(project, pointer.version)
                    continue
                cipher = await self._load(record)
                key = _Loaded(key_id, cipher, json.loads(record.value)["at"], now)
            if not key.is_worn(now):
                self._current[project] = key
                return key
            await self._make(project, pointer.version)
        raise Unavailable("The project's encryption key is being changed too often.")

    async def _make(self, project: str, seen: int) -> None:
        """Make a data key and let it be current, unless somebody else has done so."""
        key_id, now = secrets.token_hex(8), self._clock.now_ms()
        fresh = AESGCM.generate_key(KEY_BYTES * 8)
        wrapped = self._wrapped(project, key_id, fresh, now)
        # Nobody else knows the id: a record of it is this one, whose answer was lost.
        with contextlib.suppress(RecordChanged):
            await self._management.put_record(KIND, project, key_id, wrapped, expected=0)
        pointer = json.dumps({"id": key_id}).encode()
        try:
            await self._management.put_record(CURRENT, project, "1", pointer, expected=seen)
        except RecordChanged:
            # Perhaps changed by this very write, whose answer was lost: others seal with it.
            current = await self._management.get_record(CURRENT, project, "1")
            if current is None or current.value != pointer:
                await self._management.delete_record(KIND, project, key_id)
        self._current.pop(project, None)

    def _wrapped(self, project: str, key_id: str, fresh: bytes, at: int) -> bytes:
        name = self._server_key
        wrapped = wrap(self._keys[name], name, project, key_id, fresh)
        text = base64.b64encode(wrapped).decode("ascii")
        return json.dumps({"kek": name, "wrapped": text, "at": at}).encode()

    async def _cipher(self, project: str, key_id: str) -> AESGCM:
        cipher = self._ciphers.get((project, key_id))
        return cipher or await self._load(await self._record(project, key_id))

    async def _record(self, project: str, key_id: str) -> Record:
        record = await self._management.get_record(KIND, project, key_id)
        if record is None:
            message = f"there is no data key {key_id} of its project"
            raise Damaged(message)
        return record

    async def _load(self, record: Record) -> AESGCM:
        stored = json.loads(record.value)
        name = stored["kek"]
        if name not in self._keys:
            raise Unavailable(
                f"The messages are sealed with the key {name!r}, which is not in "
                "encryption_key_file: its line must stay there.",
                retry_after=60,
            )
        wrapped = base64.b64decode(stored["wrapped"])
        try:
            fresh = unwrap(self._keys[name], name, record.project, record.name, wrapped)
        except Damaged:
            raise Unavailable(
                f"The messages are sealed with another key than {name!r} of encryption_key_file, "
                "or their data key was changed: the line must be as it was.",
                retry_after=60,
            ) from None
        if name != self._server_key:
            await self._rewrap(record, fresh, stored["at"])
        cipher = AESGCM(fresh)
        self._ciphers[record.project, record.name] = cipher
        return cipher

    async def _rewrap(self, record: Record, fresh: bytes, at: int) -> None:
        """Wrap a data key with the server's current key, so that the earlier one may go."""
        value = self._wrapped(record.project, record.name, fresh, at)
        try:
            await self._management.put_record(
                KIND, record.project, record.name, value, expected=record.version
            )
        except RecordChanged:
            return  # another process has done it


def _origin(kind: str, name: str) -> str:
    """What stands for the queue where a record is sealed; neither part may have a colon."""
    return f"{kind}/{name}"
