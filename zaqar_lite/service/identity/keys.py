"""Keys: made, shown once, stored as a hash, and believed for five seconds at a time.

A key is `zq_<id>_<secret>`. Its record has the kind `key`, no project and its id as the name, so
that one read finds it; a record of the kind `key-of` in its project lists it. The secret has 192
random bits: a slow hash would cost each login a lot and a guess nothing.
"""

import hmac
import logging
import os
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

from msgspec import Struct, json
from msgspec.structs import replace

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    ConfigurationError,
    Denied,
    Invalid,
    NotFound,
    RecordChanged,
    Unauthenticated,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.identity import How, Principal, is_project_id, parse_grants
from zaqar_lite.domain.limits import MAX_PROJECT_ID, check_range
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.identity.authentication import Credential, Place
from zaqar_lite.service.records import Kind, Most
from zaqar_lite.storage.management import ManagementStore

KIND, LISTED = "key", "key-of"
NO_PROJECT = ""
"""Where the records of keys lie, and the list of those that are bound to no project."""
MAX_KEYS = 1_000
"""Keys of one project, with those that are expired or disabled."""
MOST_LISTED = 100
MAX_DESCRIPTION = 256
BELIEVED_FOR = 5.0
LONGEST_OVERLAP = 31 * 86_400
LONGEST_LIFE = 3_653 * 86_400
_MAX_CACHED = 1_000
_ID = re.compile("[0-9a-f]{16}")
_KEY = re.compile(r"zq_(?P<id>[0-9a-f]{16})_(?P<secret>[0-9a-f]{48})")


class Key(Struct, frozen=True):
    """A key as it is stored: everything but its secret. `project` is None for an operator's.

    Its record has its id as the name.
    """

    id: str = ""
    project: str | None = None
    grants: tuple[str, ...] = ()
    created_at: int = 0
    created_by: str | None = None
    expires_at: int | None = None
    disabled: bool = False
    description: str = ""
    hash: str = ""

    def __repr__(self) -> str:
        """Show no hash."""
        return f"Key({self.id!r}, {self.project!r}, {self.grants!r})"

    def is_live(self, now_ms: int) -> bool:
        """Tell whether it opens anything now."""
        return not self.disabled and (self.expires_at is None or now_ms < self.expires_at)


@dataclass(frozen=True, slots=True)
class Signer:
    """Whom a key stands for whose holder signs requests, and the secret that signs."""

    principal: Principal
    secret: str = field(repr=False)


class Keys:
    """What an administrator may do with keys, and the provider that recognises them."""

    challenge = 'Bearer realm="zaqar-lite"'
    is_remote = False
    believed_for = BELIEVED_FOR

    def __init__(self, management: ManagementStore, clock: Clock) -> None:
        self._clock = clock
        self._keys = Kind[Key](
            management,
            KIND,
            "The key",
            reads=lambda record: replace(_decode(record.value), id=record.name),
        )
        self._listed = Kind[str](
            management,
            LISTED,
            "The key",
            encode=lambda _: b"{}",
            reads=lambda record: record.name,
            most=Most(MAX_KEYS, Invalid, "keys in a project, with those that are expired"),
        )
        self.changed: Callable[[], None] = lambda: None
        """Called when a key was changed here: what is believed of it must be forgotten."""
        self._live: Cache[str, tuple[Key, int]] = Cache(_MAX_CACHED)

    def recognises(self, credential: Credential) -> bool:
        """Tell whether a credential is a key."""
        return credential.place is Place.BEARER and credential.text.startswith("zq_")

    async def authenticate(self, credential: Credential) -> Principal:
        """Find out whose key it is."""
        found = _KEY.fullmatch(credential.text)
        if found is None:
            raise Unauthenticated("what begins like a key is none")
        key = await self._keys.find(NO_PROJECT, found["id"])
        expected = _hash("") if key is None else key.hash
        fits = hmac.compare_digest(_hash(found["secret"]), expected)
        if key is None or not fits or not key.is_live(self._clock.now_ms()):
            raise Unauthenticated(f"the key {found['id']} is wrong, expired or disabled")
        return _principal(key)

    async def signer(self, key_id: str) -> Signer:
        """Whom the key of an id stands for, and the secret by which its holder signs requests.

        What is known of a key is believed for BELIEVED_FOR.

        Raises:
            Unauthenticated: there is no such key, or it is expired or disabled.
        """
        now, live = self._clock.now_ms(), self._live
        key, until = live.get(key_id, (None, 0))
        if key is None or until <= now:
            key = await self._keys.find(NO_PROJECT, key_id) if _ID.fullmatch(key_id) else None
            if key is not None:
                live[key_id] = key, now + int(BELIEVED_FOR * 1000)
        if key is None or not key.is_live(now):
            raise Unauthenticated("the key that signs is unknown, expired or disabled")
        return Signer(_principal(key), signing_secret(key))

    async def create(
        self,
        maker: Principal,
        project: str | None,
        grants: Sequence[str],
        *,
        expires_in: int | None = None,
        description: str = "",
    ) -> tuple[Key, str]:
        """Make a key of a project; answer it and its text, which nobody can see again.

        Raises:
            Invalid: the grants or a time are wrong, or the project has too many keys.
            Denied: the maker is bound to another project.
        """
        _check_project(maker, project)
        check_range("'expires'", expires_in, 1, LONGEST_LIFE, " seconds")
        if len(description) > MAX_DESCRIPTION:
            raise Invalid(f"'description' may have {MAX_DESCRIPTION} characters.")
        now = self._clock.now_ms()
        return await self._make(
            Key(
                secrets.token_hex(8),
                project,
                tuple(map(str, parse_grants(grants))),
                created_at=now,
                created_by=maker.user,
                expires_at=None if expires_in is None else now + expires_in * 1000,
                description=description,
            )
        )

    async def get(self, maker: Principal, key_id: str) -> Key:
        """Show a key.

        Raises:
            NotFound: there is none, or it is of a project that is none of the asker's business.
        """
        key = await self._keys.find(NO_PROJECT, key_id) if _ID.fullmatch(key_id) else None
        if key is None or not _is_of(maker, key.project):
            raise NotFound(f"The key {key_id!r} does not exist.")
        return key

    async def list_keys(
        self, maker: Principal, project: str | None, *, marker: str | None, limit: int
    ) -> Sequence[Key]:
        """List a project's keys by id, after `marker`; expired and disabled ones too."""
        _check_project(maker, project)
        found: list[Key] = []
        while True:
            names = await self._listed.page(project or NO_PROJECT, marker, limit)
            keys = [await self._keys.find(NO_PROJECT, name) for name in names]
            found += [key for key in keys if key is not None]
            if len(found) >= limit or len(names) < limit:
                return found[:limit]
            marker = names[-1]

    async def set_disabled(self, maker: Principal, key_id: str, disabled: bool) -> Key:
        """Let a key open nothing any more, or again: here at once, elsewhere within 5 s.

        Raises:
            NotFound: as `get`.
        """
        return await self._change(maker, key_id, lambda key: replace(key, disabled=disabled))

    async def rotate(self, maker: Principal, key_id: str, *, overlap: int) -> tuple[Key, str]:
        """Make a key like this one, which then opens things for `overlap` seconds more only.

        Raises:
            NotFound: as `get`.
            Invalid: the overlap is out of range, or the key opens nothing now.
        """
        check_range("'overlap'", overlap, 0, LONGEST_OVERLAP, " seconds")
        old = await self.get(maker, key_id)
        now = self._clock.now_ms()
        until = now + overlap * 1000

        def end_soon(key: Key) -> Key:
            if not key.is_live(now) and (key.disabled or key.expires_at != until):
                raise Invalid(f"The key {key_id} is disabled or expired: create a new one.")
            return replace(key, expires_at=min(until, key.expires_at or until))

        end_soon(old)
        new, text = await self._make(
            replace(old, id=secrets.token_hex(8), created_at=now, created_by=maker.user)
        )
        try:  # it may have been disabled meanwhile
            try:
                await self._change(maker, key_id, end_soon)
            except Unavailable:  # it may end all the same: then the new one is all there is
                await self._change(maker, key_id, end_soon)
        except ZaqarLiteError:
            with suppress(Unavailable):  # nobody has seen its secret
                await self._remove(new)
            raise
        return new, text

    async def delete(self, maker: Principal, key_id: str) -> None:
        """Remove a key; no error when there is none.

        Raises:
            Invalid: it is an operator's: the file of the first one would bring it back.
        """
        try:
            key = await self.get(maker, key_id)
        except NotFound:
            return
        if key.project is None:
            raise Invalid("A key that is bound to no project can be disabled, not deleted.")
        await self._remove(key)

    async def register(self, text: str) -> bool:
        """Make the key of this text an operator's that may do everything, unless its id is known.

        Answers whether it was made. Two processes may do it at once.

        Raises:
            Invalid: the text is no key.
        """
        found = _KEY.fullmatch(text)
        if found is None:
            raise Invalid("it holds no key (zq_<id>_<secret>)")
        if await self._keys.find(NO_PROJECT, found["id"]) is not None:
            return False
        now = self._clock.now_ms()
        key = Key(found["id"], None, ("*:*",), now, description="admin_key_file")
        await self._listed.put(NO_PROJECT, key.id, key.id, None)
        try:
            await self._keys.put(NO_PROJECT, key.id, replace(key, hash=_hash(found["secret"])), 0)
        except RecordChanged:
            return False
        self._note_change()
        return True

    async def _make(self, key: Key) -> tuple[Key, str]:
        text = new_key(key.id)
        key = replace(key, hash=_hash(text.rpartition("_")[2]))
        # The list comes first: what it names and is not there is passed over.
        await self._listed.make(key.project or NO_PROJECT, key.id, key.id)
        await self._keys.put(NO_PROJECT, key.id, key, 0)
        self._note_change()
        return key, text

    async def _remove(self, key: Key) -> None:
        await self._keys.delete(NO_PROJECT, key.id)
        self._note_change()
        await self._listed.delete(key.project or NO_PROJECT, key.id)

    def _note_change(self) -> None:
        # Another cache: what is being read may be from before the change.
        self._live = Cache(_MAX_CACHED)
        self.changed()

    async def _change(self, maker: Principal, key_id: str, change: Callable[[Key], Key]) -> Key:
        await self.get(maker, key_id)
        key = await self._keys.change(NO_PROJECT, key_id, change)
        self._note_change()
        return key


def new_key(key_id: str) -> str:
    """Make the text of a key."""
    return f"zq_{key_id}_{secrets.token_hex(24)}"


def signing_secret(key: Key) -> str:
    """The secret by which the holder of a key signs requests, as AWS's keys have one.

    A signature is verified with the secret itself, of which a hash would not do: it is derived
    from the hash that is stored, which the holder can compute from the key's text.
    """
    derived = hmac.digest(bytes.fromhex(key.hash), b"signing secret", "sha256")
    return b64encode(derived[:30]).decode()


def _principal(key: Key) -> Principal:
    return Principal(
        How.KEY, key.project, key.id, grants=parse_grants(key.grants), expires_at=key.expires_at
    )


def _is_of(maker: Principal, project: str | None) -> bool:
    """Tell whether the keys of a project are its business."""
    return maker.is_operator or (project is not None and maker.project == project)


def _check_project(maker: Principal, project: str | None) -> None:
    if not _is_of(maker, project):
        raise Denied("it is bound to another project")
    if project is not None and not is_project_id(project):
        raise Invalid(
            f"A project id has 1 to {MAX_PROJECT_ID} printable characters, and is not of the "
            "server itself."
        )


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


_decode = json.Decoder(Key).decode


logger = logging.getLogger("zaqar_lite")


async def ensure_admin_key(path: Path, keys: Keys) -> None:
    """Make the key's file where there is none, and let the store know the key.

    Several processes may do so at once. A key whose id the store knows already stays as it is
    there: disabled, for example.

    Raises:
        ConfigurationError: the file can't be made or read, or holds something else.
        Unavailable: the store can't keep it now.
    """
    try:
        made = await keys.register(_read_key_file(path))
    except Invalid as exc:
        raise ConfigurationError(f"admin_key_file: {path}: {exc}.") from None
    if made:
        logger.info("the admin key is in %s", path)


def _read_key_file(path: Path) -> str:
    try:
        if not path.exists():
            _make_key_file(path)
        text = path.read_text(encoding="ascii").strip()
        is_open = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it holds no key"
        raise ConfigurationError(f"admin_key_file: {path}: {why}.") from None
    if is_open:
        logger.warning("others may read the admin key in %s: chmod 600 it", path)
    return text


def _make_key_file(path: Path) -> None:
    """Write a new key. It appears whole under its name, and of racing writers one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent) as draft:  # for this user alone
        draft.write(new_key(secrets.token_hex(8)) + "\n")
        draft.flush()
        os.fsync(draft.fileno())
        with suppress(FileExistsError):
            os.link(draft.name, path)
