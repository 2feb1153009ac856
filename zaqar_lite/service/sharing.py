r"""Pre-signed URLs (zaqar-behaviour 6).

The signature is hex(HMAC-SHA256(secret, text)), or names its key too (`signing.py`); text is the
sorted paths joined by ',', the sorted methods joined by ',', the project and the expiry, joined by
the two characters `\` and `n` (upstream's format, which clients compute too). Methods must be HTTP
verbs and no field may hold the separator or a comma, so that no two requests have the same text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.topics import path_of
from zaqar_lite.service.signing import SEPARATOR, Keyring, Revocations

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


class Sharing:
    """Make, verify and revoke pre-signed URLs."""

    def __init__(self, keyring: Keyring, revocations: Revocations, *, max_expires: int) -> None:
        self._keyring = keyring
        self._revocations = revocations
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
        if not self._keyring.can_sign:
            raise Invalid(
                "This server can't sign URLs: its settings signed_url_secret_key and "
                "signed_url_keys are not set."
            )
        for resource in resources:
            if resource not in RESOURCES:
                raise Invalid(f"'paths' may hold only {', '.join(RESOURCES)}.")
        for method in methods:
            if method not in METHODS:
                raise Invalid(f"'methods' may hold only {', '.join(METHODS)}.")
        if SEPARATOR in queue.project or "," in queue.project:
            raise Invalid("The project id holds a ',' or the separator, so it can't be signed.")
        base = path_of(queue)
        paths = sorted({f"{base}/{resource}" for resource in resources or ("messages",)})
        verbs = sorted(set(methods or ("GET",)))
        until = self._expiry(expires).strftime(_TIME_FORMAT)
        epoch = await self._revocations.epoch(queue)
        signature = self._keyring.sign(_text(paths, verbs, queue.project, until), epoch)
        return SignedUrl(paths, verbs, queue.project, until, signature)

    async def sign_path(
        self, queue: QueueRef, path: str, method: str, until: datetime
    ) -> SignedUrl:
        """Sign one request about a queue, whatever it is, until an instant.

        Raises:
            Invalid: the project can't be signed, or no key is configured.
        """
        project = queue.project
        if not self._keyring.can_sign or SEPARATOR in project or "," in project:
            raise Invalid("The project id holds a ',' or the separator, or there is no key.")
        expires = until.strftime(_TIME_FORMAT)
        epoch = await self._revocations.epoch(queue)
        signature = self._keyring.sign(_text([path], [method], project, expires), epoch)
        return SignedUrl([path], [method], project, expires, signature)

    async def unshare(self, queue: QueueRef) -> None:
        """Revoke all that was signed for a queue until now, requests to confirm included."""
        await self._revocations.revoke(queue)

    async def admits(self, queue: QueueRef, signature: str) -> bool:
        """Tell whether a verified signature for a queue was not revoked."""
        return await self._revocations.admits(queue, signature)

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
        if SEPARATOR in project or "," in project or any(SEPARATOR in text for text in allowed):
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
            raise Invalid(f"'expires' must be within {days:g} days (signed_url_max_expires).")
        return until


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
