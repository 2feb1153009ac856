r"""Encryption: the keys of encrypted queues, and the stores as services see them with keys.

The server's own keys lie in a file and never leave the process; the first of them is current. Each
project has data keys, which seal its messages, in records of the management store, sealed with a
key of the server:

    data-key   project, name = id   {"kek": key of the server, "wrapped": base64, "at": ms}

The newest one is current: it seals what is posted. It is replaced when it is 30 days old or has
sealed 2^28 messages in one process (random nonces of 96 bits allow 2^32), or when somebody asks;
the earlier ones stay, to open what they sealed. When the server's current key changes, a data key
is wrapped anew as it is loaded.

A body is sealed with AES-256-GCM (NIST SP 800-38D), and is a JSON text again, so that every store
and every tool that reads bodies takes it:

    "\u0001sealed:1:<data key>:<origin queue>:<base64 of nonce and ciphertext>"

The nonce has 96 random bits; the tag of 128 bits also covers the version, the data key, the project
and the queue that the message was posted to. The ciphertext is of the JSON as it was posted.

Services see the stores through `opening` and `sealing`: bodies come out opened. Records that hold
what their users would hide, such as the headers of a webhook, the secret that signs for it, the
body of a schedule, the id of a trust and the passwords of a pool, lie sealed in the management
store, bound to their project, kind and name.
"""

import asyncio
import base64
import json
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    Conflict,
    NotFound,
    RecordChanged,
    RecordDamaged,
    Unavailable,
)
from zaqar_lite.domain.models import (
    Claimed,
    ClaimRequest,
    Message,
    QueueRef,
    Record,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.domain.yielding import in_steps
from zaqar_lite.service import key_files
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.records import PREFIX, Kind, is_sealed
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
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
        raise Damaged("the body is not in the form of a sealed one") from error


def seal(cipher: AESGCM, key_id: str, project: str, origin: str, body: bytes) -> bytes:
    """Seal a body, posted to the queue `origin`."""
    text = base64.b64encode(encrypt(cipher, key_id, project, origin, body))
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
        raise Damaged("the body is not what was stored") from error


def encrypt(cipher: AESGCM, key_id: str, project: str, name: str, clear: bytes) -> bytes:
    """Encrypt what `unseal` returns: a body, or a data key of the project."""
    nonce = os.urandom(_NONCE)
    return nonce + cipher.encrypt(nonce, clear, _bound_to(key_id, project, name))


def _bound_to(key_id: str, project: str, name: str) -> bytes:
    return "\n".join(("1", key_id, name, project)).encode()


KIND = "data-key"
DAMAGED = "zaqar_lite_damaged"
"""The key that an object has which stands for what can't be opened."""
MAX_LISTED = 1_000
MAX_ROTATED = 100
_CACHED = 10_000
_FRESH_MS = 60_000
_LIFE_MS = 2_592_000_000
_MOST_SEALED = 1 << 28


class DataKey(msgspec.Struct):
    """A key of a project, sealed with the key `kek` of the server; made `at` (milliseconds)."""

    kek: str
    wrapped: bytes
    at: int
    id: str = ""


@dataclass(slots=True)
class _Loaded:
    """A project's current key, as this process last found it."""

    key: DataKey
    cipher: AESGCM
    looked_at: int
    sealed: int = 0

    def is_worn(self, now_ms: int) -> bool:
        return now_ms - self.key.at > _LIFE_MS or self.sealed > _MOST_SEALED

    def is_fresh(self, now_ms: int) -> bool:
        return now_ms - self.looked_at <= _FRESH_MS and not self.is_worn(now_ms)


def read_key_file(path: Path) -> Mapping[str, bytes]:
    """Read the server's keys: a line `id:base64 of 32 bytes` each, the current one first.

    Raises:
        ConfigurationError: it can't be read or holds no key; names the line, never the key.
    """
    read, sizes = partial(base64.b64decode, validate=True), range(KEY_BYTES, KEY_BYTES + 1)
    wanted = "32 bytes in base64: openssl rand -base64 32"
    return key_files.read_key_file("encryption_key_file", path, read, sizes, wanted)


class EncryptionKeys:
    """Seal and open the bodies of encrypted queues."""

    def __init__(
        self, management: ManagementStore, keys: Mapping[str, bytes], clock: Clock
    ) -> None:
        self._kind = Kind(
            management,
            KIND,
            "The data key",
            reads=lambda record: msgspec.structs.replace(
                msgspec.json.decode(record.value, type=DataKey), id=record.name
            ),
        )
        self._keys = keys
        self._server_key = next(iter(keys))
        self._clock = clock
        self._ciphers: Cache[tuple[str, str], AESGCM] = Cache(_CACHED)
        self._current: Cache[str, _Loaded] = Cache(_CACHED)
        self._making = asyncio.Lock()

    async def seal(self, queue: QueueRef, new: Sequence[NewMessage]) -> list[NewMessage]:
        """Seal the bodies of a post to a queue.

        Raises:
            Unavailable: the project's key can't be had now; nothing was stored.
        """
        key = await self._sealing_key(queue.project, len(new))
        sealed: list[NewMessage] = []
        async for _, part in in_steps(new):
            for one in part:
                # Encrypted already, for this queue (`check_sealed`): a pop found no key for it and
                # answered it as it was stored, and now the client posts it again.
                body = one.body
                if not is_sealed(body):
                    body = seal(key.cipher, key.key.id, queue.project, queue.name, body)
                sealed.append(msgspec.structs.replace(one, body=body))
        return sealed

    async def seal_body(self, queue: QueueRef, body: bytes) -> bytes:
        """Seal one body, of a message that is edited."""
        key = await self._sealing_key(queue.project, 1)
        return seal(key.cipher, key.key.id, queue.project, queue.name, body)

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
        stored = await self.list_keys(project)
        if len(stored) >= MAX_ROTATED:
            raise Conflict(f"A project may have {MAX_ROTATED} keys made by request.")
        await self._make(project, stored)
        # Another cache: a key that is being read may be the one before. Other projects keep theirs,
        # which count what they have sealed.
        others = [(name, key) for name, key in self._current.items() if name != project]
        self._current = Cache(_CACHED)
        self._current.update(others)

    async def list_keys(self, project: str) -> list[DataKey]:
        """List a project's data keys by age, at most 1,000; the last one is current."""
        found = await self._kind.page(project, None, MAX_LISTED)
        return sorted(found, key=lambda one: (one.at, one.id))

    async def _sealing_key(self, project: str, count: int) -> _Loaded:
        now = self._clock.now_ms()
        key = self._current.get(project)
        if key is None or not key.is_fresh(now):
            key = await self._newest(project, now)
        if key is None or key.is_worn(now):
            async with self._making:  # else each of many first posts would make a key
                key = await self._newest(project, now)
                if key is None or key.is_worn(now):
                    await self._make(project, await self.list_keys(project))
                    key = await self._newest(project, now)
        if key is None:
            raise Unavailable("The key that was made for the project is not there any more.")
        key.sealed += count
        return key

    async def _newest(self, project: str, now: int) -> _Loaded | None:
        """The newest key of a project, if it has one."""
        current = self._current
        stored = await self.list_keys(project)
        if not stored:
            return None
        known = current.get(project)
        if known is None or known.key.id != stored[-1].id:
            known = _Loaded(stored[-1], await self._load(project, stored[-1]), now)
        known.looked_at = now
        current[project] = known
        return known

    async def _make(self, project: str, stored: Sequence[DataKey]) -> None:
        """Make a data key that is newer than all that are stored."""
        now = self._clock.now_ms()
        at = max(now, stored[-1].at + 1) if stored else now
        made = self._wrapped(project, secrets.token_hex(8), AESGCM.generate_key(KEY_BYTES * 8), at)
        # Nobody else knows the id: a record of it is this one, whose answer was lost.
        with suppress(RecordChanged):
            await self._kind.put(project, made.id, made, 0)

    def _wrapped(self, project: str, key_id: str, fresh: bytes, at: int) -> DataKey:
        name = self._server_key
        wrapped = encrypt(AESGCM(self._keys[name]), name, project, key_id, fresh)
        return DataKey(name, wrapped, at, key_id)

    async def _cipher(self, project: str, key_id: str) -> AESGCM:
        cipher = self._ciphers.get((project, key_id))
        if cipher is not None:
            return cipher
        stored = await self._kind.find(project, key_id)
        if stored is None:
            raise Damaged(f"there is no data key {key_id} of its project")
        return await self._load(project, stored)

    async def _load(self, project: str, stored: DataKey) -> AESGCM:
        name = stored.kek
        if name not in self._keys:
            raise Unavailable(
                f"The messages are sealed with the key {name!r}, which is not in "
                "encryption_key_file: its line must stay there.",
                retry_after=60,
            )
        try:
            sealed = Envelope(name, stored.id, stored.wrapped)
            fresh = unseal(AESGCM(self._keys[name]), project, sealed)
        except Damaged:
            raise Unavailable(
                f"The messages are sealed with another key than {name!r} of encryption_key_file, "
                "or their data key was changed: the line must be as it was.",
                retry_after=60,
            ) from None
        if name != self._server_key:
            await self._rewrap(project, stored.id, fresh)
        cipher = self._ciphers[project, stored.id] = AESGCM(fresh)
        return cipher

    async def _rewrap(self, project: str, key_id: str, fresh: bytes) -> None:
        """Wrap a data key with the server's current key, so that the earlier one may go."""
        with suppress(NotFound):
            await self._kind.change(
                project, key_id, lambda old: self._wrapped(project, key_id, fresh, old.at)
            )


def _origin(kind: str, name: str) -> str:
    """What stands for the queue where a record is sealed: ASCII without a colon."""
    if ":" in name or not name.isascii():
        name = quote(name)
    return f"{kind}/{name}"


def opening(store: MessageStore, encryption_keys: EncryptionKeys) -> MessageStore:
    """Open what is read from a store; everything else is the store's."""
    return cast(MessageStore, _Opening(store, encryption_keys))


def sealing(
    store: ManagementStore, encryption_keys: EncryptionKeys, kinds: Collection[str]
) -> ManagementStore:
    """Seal some kinds of records in front of their store."""
    return cast(ManagementStore, _Sealing(store, encryption_keys, kinds))


_READ: dict[str, Callable[[Any], Iterable[Message]]] = {
    "list_messages": lambda page: page.messages,
    "get_messages": lambda found: found,
    "get_claim": lambda claim: claim.messages,
    "edit": lambda edited: (edited,),
}
"""The messages in what an operation answers."""


class _Opening:
    def __init__(self, store: MessageStore, encryption_keys: EncryptionKeys) -> None:
        self._store = store
        self._encryption_keys = encryption_keys
        self._closed: Cache[QueueRef, tuple[float, str]] = Cache(_CACHED)
        """Until when (monotonic clock) a queue's claims are refused, and why."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        act, messages_in = getattr(self._store, name), _READ.get(name)
        if messages_in is None:
            return act

        async def opened(queue: QueueRef, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as the store's
            found = await act(queue, *given, **named)
            opens = self._open_changed if name == "edit" else self._encryption_keys.open
            await opens(queue.project, messages_in(found))
            return found

        return opened

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        """Claim messages and open their bodies; if that can't be done, release the claim.

        Then further claims of the queue are refused, until the error's `retry_after` has passed:
        each of them would count, and `_max_claim_count` would make dead letters of all messages.

        Raises:
            Unavailable: as `EncryptionKeys.open`, but not for what the claim removes.
        """
        until, why = self._closed.get(queue, (0.0, ""))
        left = until - monotonic()
        if left > 0 and not request.removes:
            raise Unavailable(why, retry_after=ceil(left))
        claimed = await self._store.claim(queue, request)
        if request.removes:
            await self._open_changed(queue.project, claimed.messages)
            return claimed
        try:
            await self._encryption_keys.open(queue.project, claimed.messages)
        except Unavailable as error:
            self._closed[queue] = monotonic() + error.retry_after, error.shown
            if claimed.claim_id is not None:
                with suppress(Unavailable):  # then its leases lapse
                    given_back = Settlement("", Act.RELEASE)
                    await self._store.settle(queue, claimed.claim_id, given_back)
            raise
        return claimed

    async def _open_changed(self, project: str, messages: Iterable[Message]) -> None:
        """Open what was popped or edited: a body without its key is shown as it was stored."""
        for message in messages:
            try:
                await self._encryption_keys.open(project, (message,))
            except Unavailable as error:
                shown = {DAMAGED: error.shown, "sealed": json.loads(message.body)}
                message.body = json.dumps(shown).encode()


class _Sealing:
    """What was written before there was a key is read as it is, and sealed when it changes."""

    def __init__(
        self, store: ManagementStore, encryption_keys: EncryptionKeys, kinds: Collection[str]
    ) -> None:
        self._store = store
        self._encryption_keys = encryption_keys
        self._kinds = kinds

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    async def put_record(
        self,
        kind: str,
        project: str,
        name: str,
        value: bytes,
        **more: Any,  # noqa: ANN401 - as the store's
    ) -> Record:
        kept = value
        if kind in self._kinds:
            kept = await self._encryption_keys.seal_record(kind, project, name, value)
        written = await self._store.put_record(kind, project, name, kept, **more)
        return replace(written, value=value)

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        found = await self._store.get_record(kind, project, name)
        return None if found is None else await self._opened(found)

    async def opened(self, records: Sequence[Record]) -> Sequence[Record]:
        readable = []
        for record in records:
            try:
                readable.append(await self._opened(record))
            except RecordDamaged:
                _tell_damaged(record.kind, record.project, record.name)
        return readable

    async def _opened(self, record: Record) -> Record:
        if record.kind not in self._kinds or not is_sealed(record.value):
            return record
        return replace(record, value=await self._encryption_keys.open_record(record))


@lru_cache(maxsize=1_000)  # once: the subscriptions of a busy queue are read every second
def _tell_damaged(kind: str, project: str, name: str) -> None:
    logger.error("the %s %r of project %r is sealed, and was damaged", kind, name, project)
