r"""Pre-signed URLs (zaqar-behaviour 6).

The signature is hex(HMAC-SHA256(secret, text)); text is the sorted paths joined by ',', the sorted
methods joined by ',', the project and the expiry, joined by the two characters `\` and `n`
(upstream's format, which clients compute too). Methods must be HTTP verbs and no field may hold the
separator or a comma, so that no two requests have the same text.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import QueueRef

SEPARATOR = "\\n"
RESOURCES = ("messages", "subscriptions", "claims")
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
    signature: str


class Sharing:
    """Make and verify pre-signed URLs."""

    def __init__(self, secret_key: str | None, *, max_expires: int) -> None:
        self._secret = secret_key.encode() if secret_key else None
        self._max_expires = timedelta(seconds=max_expires)

    def share(
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
        if self._secret is None:
            raise Invalid(
                "This server can't sign URLs: its setting signed_url_secret_key is not set."
            )
        for resource in resources:
            if resource not in RESOURCES:
                raise Invalid(f"'paths' may hold only {', '.join(RESOURCES)}.")
        for method in methods:
            if method not in METHODS:
                raise Invalid(f"'methods' may hold only {', '.join(METHODS)}.")
        if SEPARATOR in queue.project or "," in queue.project:
            raise Invalid("The project id holds a ',' or the separator, so it can't be signed.")
        base = f"/v2/queues/{queue.name}"
        paths = sorted({f"{base}/{resource}" for resource in resources or ("messages",)})
        verbs = sorted(set(methods or ("GET",)))
        until = self._expiry(expires).strftime(_TIME_FORMAT)
        signature = self._sign(paths, verbs, queue.project, until)
        return SignedUrl(paths, verbs, queue.project, until, signature)

    def sign_path(self, path: str, method: str, project: str, until: datetime) -> SignedUrl:
        """Sign one request, whatever it is, until an instant.

        Raises:
            Invalid: the project can't be signed, or no key is configured.
        """
        if self._secret is None or SEPARATOR in project or "," in project:
            raise Invalid("The project id holds a ',' or the separator, or there is no key.")
        expires = until.strftime(_TIME_FORMAT)
        signature = self._sign([path], [method], project, expires)
        return SignedUrl([path], [method], project, expires, signature)

    def verify(  # noqa: PLR0911 - one reason a line, in upstream's order
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
        """Tell whether a signed request is good; `paths` and `methods` are comma lists."""
        if self._secret is None:
            return False
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
        expected = self._sign(allowed, verbs, project, until.strftime(_TIME_FORMAT))
        return hmac.compare_digest(expected.encode(), signature.encode())

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

    def _sign(
        self, paths: Sequence[str], methods: Sequence[str], project: str, expires: str
    ) -> str:
        text = SEPARATOR.join((",".join(paths), ",".join(methods), project, expires))
        return hmac.new(self._secret or b"", text.encode(), sha256).hexdigest()


def _parse_time(text: str) -> datetime:
    if text.isdigit():
        raise ValueError(text)
    parsed = datetime.fromisoformat(text)
    try:
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except OverflowError:  # its zone takes it out of the years 1 to 9999
        raise ValueError(text) from None
