r"""Pre-signed URLs (zaqar-behaviour 6).

The signature is hex(HMAC-SHA256(secret, text)), or names its key too (`signing.py`); text is the
sorted paths joined by ',', the sorted methods joined by ',', the project and the expiry, joined by
the two characters `\` and `n` (upstream's format, which clients compute too). Methods must be HTTP
verbs and no field may hold the separator or a comma, so that no two requests have the same text.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import msgspec

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.topics import path_of
from zaqar_lite.service.records import Kind
from zaqar_lite.storage.management import ManagementStore

SEPARATOR = "\\n"
KIND = "signatures"
NO_ID = ""
"""The id of the key that signs in upstream's form."""


class Keyring:
    """Keys by their ids: all of them verify, the first one signs. `NO_ID` may be among them."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys
        self.current = next(iter(keys), None)
        """The id of the key that signs, None where there is none."""

    def sign(self, text: str, epoch: int) -> str:
        """Sign a text for a queue whose signatures were revoked `epoch` times."""
        key_id = self.current or NO_ID
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


def _extended(text: str, key_id: str, epoch: str) -> str:
    return SEPARATOR.join((text, key_id, epoch))


def _digest(secret: bytes, text: str) -> str:
    return hmac.new(secret, text.encode(), sha256).hexdigest()


RESOURCES = ("messages", "subscriptions", "claims", "events")
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
DEFAULT_EXPIRES = timedelta(days=1)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


@dataclass(frozen=True, slots=True)
class SignedUrl:
    """What `share` answers: everything that a client needs to sign a request."""

    paths: Sequence[str]
    methods: Sequence[str]
    project: str
    expires: str
    signature: str = field(repr=False)


class PresignedUrls:
    """Make, verify and revoke pre-signed URLs.

    A record counts how often the signatures of a queue were revoked; the queue's end changes
    nothing of that.
    """

    def __init__(self, keyring: Keyring, management: ManagementStore, *, max_expires: int) -> None:
        self._keyring = keyring
        self._revoked = Kind[int](
            management,
            KIND,
            "The record of the queue's signatures",
            encode=lambda epoch: msgspec.json.encode({"epoch": epoch}),
            reads=lambda record: int(msgspec.json.decode(record.value)["epoch"]),
        )
        self._max_expires = timedelta(seconds=max_expires)

    async def share(
        self,
        queue: QueueRef,
        *,
        resources: Sequence[str],
        methods: Sequence[str],
        expires: str | None,
    ) -> SignedUrl:
        """Sign the use of a queue's resources by these methods until `expires` (ISO 8601).

        Raises:
            Invalid: a path, a method or the expiry is not allowed, or no key is configured.
        """
        for resource in resources:
            if resource not in RESOURCES:
                raise Invalid(f"'paths' may hold only {', '.join(RESOURCES)}.")
        for method in methods:
            if method not in METHODS:
                raise Invalid(f"'methods' may hold only {', '.join(METHODS)}.")
        base = path_of(queue)
        paths = sorted({f"{base}/{resource}" for resource in resources or ("messages",)})
        return await self.sign(
            queue, paths, sorted(set(methods or ("GET",))), self._expiry(expires)
        )

    async def sign(
        self, queue: QueueRef, paths: Sequence[str], methods: Sequence[str], until: datetime
    ) -> SignedUrl:
        """Sign requests about a queue, whatever they are, until an instant.

        Raises:
            Invalid: the project can't be signed, or no key is configured.
        """
        if self._keyring.current is None:
            raise Invalid(
                "This server can't sign URLs: its settings signed_url_secret_key and "
                "signed_url_key_file are not set."
            )
        if not _is_signable(queue.project):
            raise Invalid("The project id holds a ',' or the separator, so it can't be signed.")
        expires = until.strftime(_TIME_FORMAT)
        epoch = await self._epoch(queue)
        signature = self._keyring.sign(_text(paths, methods, queue.project, expires), epoch)
        return SignedUrl(paths, methods, queue.project, expires, signature)

    async def unshare(self, queue: QueueRef) -> None:
        """Revoke all that was signed for a queue until now, requests to confirm included."""
        await self._revoked.write(queue.project, queue.name, lambda epoch: (epoch or 0) + 1)

    async def admits(self, queue: QueueRef, signature: str) -> bool:
        """Tell whether a verified signature for a queue was made after the last revocation."""
        epoch = signature.partition(".")[2].partition(".")[0] or "0"
        return epoch == str(await self._epoch(queue))

    async def _epoch(self, queue: QueueRef) -> int:
        return await self._revoked.find(queue.project, queue.name) or 0

    def verify(  # one reason a line, in upstream's order
        self,
        *,
        path: str,
        method: str,
        project: str,
        signature: str,
        paths: str,
        methods: str,
        expires: str,
    ) -> bool:
        """Tell whether a signed request is good, unless it was revoked (`admits`).

        `paths` and `methods` are comma lists.
        """
        verbs = sorted(methods.split(","))
        if method not in verbs:
            return False
        allowed = sorted(paths.split(","))
        if not any(path == entry or path.startswith(entry + "/") for entry in allowed if entry):
            return False
        if not _is_signable(project) or any(SEPARATOR in text for text in allowed):
            return False
        try:
            until = _parse_time(expires)
        except ValueError:
            return False
        if until <= datetime.now(UTC):
            return False
        text = _text(allowed, verbs, project, until.strftime(_TIME_FORMAT))
        return self._keyring.fits(text, signature)

    def _expiry(self, expires: str | None) -> datetime:
        now = datetime.now(UTC)
        if expires is None:
            return now + min(DEFAULT_EXPIRES, self._max_expires)
        try:
            until = _parse_time(expires)
        except ValueError:
            raise Invalid(
                "'expires' must be a date and time in ISO 8601, such as 2030-01-31T12:00:00."
            ) from None
        if until <= now:
            raise Invalid("'expires' must be in the future.")
        if until > now + self._max_expires:
            days = self._max_expires.total_seconds() / 86_400
            raise Invalid(f"'expires' must be within {days:g} days.")
        return until


def _is_signable(project: str) -> bool:
    return SEPARATOR not in project and "," not in project


def _text(paths: Sequence[str], methods: Sequence[str], project: str, expires: str) -> str:
    """What is signed."""
    return SEPARATOR.join((",".join(paths), ",".join(methods), project, expires))


def _parse_time(text: str) -> datetime:
    if text.isdigit():
        raise ValueError(text)
    parsed = datetime.fromisoformat(text)
    try:
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except OverflowError:  # its zone takes it out of the years 1 to 9999
        raise ValueError(text) from None
