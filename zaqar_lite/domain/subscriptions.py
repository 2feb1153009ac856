"""A subscription: who receives a queue's messages, how, and until when.

Checked when it is made or changed; nothing is resolved or called then, because what an address
means can change at any time (`push/guard.py` looks at each connection).
"""

import base64
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from msgspec import Meta, Struct

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.json_values import read_json
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import MAX_RECORD, QueueRef, Record
from zaqar_lite.domain.retry_policy import ATTRIBUTE as RETRY_POLICY
from zaqar_lite.domain.retry_policy import parse_policy

KIND = "subscription"
SCHEMES = ("http", "https", "mailto", "trust+http", "trust+https")
MIN_TTL = 60
HIDDEN = "******"
"""Shown in place of the values of `post_headers`; in a PATCH it keeps what is stored."""
MAX_SUBSCRIBER = 2_048
MAX_POST_HEADERS = 32
MAX_OPTIONS = 32_768
_LATEST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD = re.compile(r"[\x20-\x7e\t]*")
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9-]+"
_MAIL_ADDRESS = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_LONGEST_MAIL_ADDRESS = 254
_RESERVED_HEADERS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
    }
)
_RESERVED_PREFIXES = ("webhook-", "proxy-")
_SECRET_BYTES = 32
_STORED = (
    "subscriber", "ttl", "options", "created_at", "renewed_at", "confirmed", "secrets", "disabled",
    "token", "trust",
)  # fmt: skip
"""The fields of a subscription that are in its record's value."""


class Secret(NamedTuple):
    """A key that signs deliveries, as Standard Webhooks writes it, until an instant or for good."""

    text: str
    until: int | None = None

    def __repr__(self) -> str:
        """Show no key."""
        return f"Secret(until={self.until!r})"


class Disabled(NamedTuple):
    """Why and when the server stopped to deliver to a subscription."""

    reason: str
    at: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscriber of a queue; instants in milliseconds, `ttl` in seconds.

    `created_at` decides which messages it receives; its age counts from `renewed_at`. `token` is
    what a signed confirmation must carry; each confirmation or refusal uses it up. `trust` is the
    id of the trust by which a token is sent along.
    """

    id: str
    queue: QueueRef
    subscriber: str
    ttl: int
    options: Mapping[str, Any] = field(repr=False)
    created_at: int
    renewed_at: int
    expires_at: int = 0
    confirmed: bool = False
    secrets: tuple[Secret, ...] = ()
    disabled: Disabled | None = None
    token: str = field(default="", repr=False)
    version: int = 0
    trust: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The name of its record: all of a queue stand together, in the order of their ids."""
        return f"{self.queue.name}/{self.id}"

    @property
    def confirmation_id(self) -> str:
        """The id of a request to confirm it by its token."""
        return f"{self.id}{self.token[:8]}"

    @property
    def needs_trust(self) -> bool:
        """Whether a token of the user who subscribed is sent along."""
        return self.subscriber.lower().startswith("trust+")

    @property
    def is_ordered(self) -> bool:
        """Whether it is sent a message only after the one before has ended."""
        return self.options.get("ordered") is True

    def encode(self) -> bytes:
        """Write the value of its record.

        Raises:
            Invalid: it is larger than a record may be.
        """
        value = {name: getattr(self, name) for name in _STORED}
        if not self.trust:
            del value["trust"]
        encoded = json.dumps(value, ensure_ascii=False).encode()
        if len(encoded) > MAX_RECORD:
            raise Invalid(f"The subscription would have {len(encoded)} bytes; {MAX_RECORD} fit.")
        return encoded

    @classmethod
    def decode(cls, record: Record) -> Self:
        """Read a record."""
        queue, _, identifier = record.name.partition("/")
        value = json.loads(record.value)
        stored = {name: value[name] for name in _STORED if name in value}
        stored["secrets"] = tuple(Secret(*secret) for secret in stored["secrets"])
        stored["disabled"] = stored["disabled"] and Disabled(*stored["disabled"])
        return cls(
            id=identifier,
            queue=QueueRef(record.project, queue),
            expires_at=record.expires_at or 0,
            version=record.version,
            **stored,
        )

    def with_new_secret(self, old_until: int | None) -> Self:
        """Add a new secret in front; the one before stays good until `old_until`."""
        earlier = tuple(Secret(one.text, old_until) for one in self.secrets[:1])
        return replace(self, secrets=(Secret(new_secret()), *earlier))


class SubscriptionDraft(Struct, frozen=True):
    """What a client sends to make a subscription, or to change one; None where it gave nothing."""

    subscriber: Annotated[str, Meta(min_length=1)] | None = None
    ttl: int | None = None
    options: dict[str, Any] | None = None
    disabled: bool | None = None


_FIELDS = (
    ("options", (dict, type(None)), "Options must be a dict."),
    ("ttl", (int,), "TTL must be an integer."),
    ("subscriber", (str,), "The subscriber must be a text."),
    ("disabled", (bool,), "'disabled' must be true or false."),
)
"""What a field may hold that is there, and the words where not: upstream's for the first two."""


class _Options(Struct, rename={"sender": "from"}):
    """The options that this server knows; others are stored as they are."""

    post_data: str | None = None
    sender: str | None = None
    subject: str | None = None
    dead_letter_queue: str | None = None
    events_queue: str | None = None
    ordered: bool = False
    post_headers: Annotated[dict[str, str], Meta(max_length=MAX_POST_HEADERS)] | None = None


def new_secret() -> str:
    """Make a secret of 32 random bytes in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def new_token() -> str:
    """Make a token that only the reader of a confirmation knows."""
    return secrets.token_urlsafe(24)


def parse_draft(
    document: Mapping[str, Any], *, now_ms: int, needs_subscriber: bool
) -> SubscriptionDraft:
    """Read what a client sent; unknown keys are ignored, as upstream does.

    Raises:
        Invalid: names the field that is wrong.
    """
    if not document:
        act = "create" if needs_subscriber else "update"
        raise Invalid(f"No subscription to {act}: the document is empty.")
    if needs_subscriber and "subscriber" not in document:
        raise Invalid("Missing parameter 'subscriber' in the body.")
    if document.get("options") == []:  # so PHP writes an empty object
        document = {**document, "options": {}}
    for name, kinds, words in _FIELDS:
        if name in document and type(document[name]) not in kinds:
            raise Invalid(words)
    read: SubscriptionDraft = read_json(document, SubscriptionDraft, "The subscription")
    if read.options is not None:
        _check_options(read.options)
    if read.ttl is not None and not MIN_TTL <= read.ttl <= _LATEST - now_ms // 1000:
        raise Invalid(f"TTL must be at least {MIN_TTL} seconds, and end before the year 9999.")
    return read


def check_subscriber(subscriber: str, refused: Mapping[str, str]) -> None:
    """Check a subscriber's URI; `refused` says why this server can't deliver to some schemes.

    Raises:
        Invalid: says what is wrong.
    """
    scheme = subscriber.partition(":")[0].lower()
    if ":" not in subscriber or scheme not in SCHEMES:
        raise Invalid(
            f"The subscriber type of a subscription must be supported in the list {list(SCHEMES)}; "
            "a topic takes queue:NAME, too."
        )
    if scheme in refused:
        raise Invalid(refused[scheme])
    if len(subscriber) > MAX_SUBSCRIBER or not _PRINTABLE.fullmatch(subscriber):
        raise Invalid(
            f"A subscriber has at most {MAX_SUBSCRIBER} characters of ASCII without blanks; others "
            "are percent-encoded."
        )
    if scheme == "mailto":
        mail_address(subscriber)
        return
    try:
        parts = urlsplit(subscriber)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Invalid("The subscriber is no valid URL.") from None
    if not host:
        raise Invalid("The subscriber's URL names no host.")
    if port is not None and not (port in (80, 443) or port >= 1024):
        raise Invalid("A subscriber's port is 80, 443, or 1024 and above.")
    if "@" in parts.netloc:
        raise Invalid(
            "The subscriber's URL may hold no user and no password: everybody who reads the "
            "subscription would read them. Give an Authorization in options.post_headers."
        )


def mail_address(subscriber: str) -> str:
    """The one address that a `mailto:` subscriber names, decoded.

    Decoded it may hold no comma, blank or bracket: a mail would go to several addresses, or none.

    Raises:
        Invalid: it names none, several, or one that needs quotes.
    """
    address = unquote(urlsplit(subscriber).path)
    if len(address) > _LONGEST_MAIL_ADDRESS or not _MAIL_ADDRESS.fullmatch(address):
        raise Invalid("The subscriber must be mailto: and one address, such as mailto:a@b.org.")
    return address


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as everybody may read them: without the values of headers."""
    shown = dict(options)
    headers = shown.get("post_headers")
    if isinstance(headers, dict):
        shown["post_headers"] = dict.fromkeys(headers, HIDDEN)
    return shown


def merged_options(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that replace the `stored` ones: a header with a hidden value keeps its own.

    Raises:
        Invalid: a hidden value for a header that there was not.
    """
    merged = dict(given)
    headers = merged.get("post_headers")
    if isinstance(headers, dict) and HIDDEN in headers.values():
        before = stored.get("post_headers") or {}
        unknown = [
            name for name, value in headers.items() if value == HIDDEN and name not in before
        ]
        if unknown:
            raise Invalid(
                f"The header {unknown[0]!r} needs its value: {HIDDEN} stands for another."
            )
        merged["post_headers"] = {
            name: before[name] if value == HIDDEN else value for name, value in headers.items()
        }
    return merged


def _check_options(options: Mapping[str, Any]) -> None:
    size = len(json.dumps(options, ensure_ascii=False).encode())
    if size > MAX_OPTIONS:
        raise Invalid(f"The options have {size} bytes; {MAX_OPTIONS} are allowed.")
    parse_policy(options.get(RETRY_POLICY))
    read: _Options = read_json(options, _Options, "Options")
    for name in (read.dead_letter_queue, read.events_queue):
        if name is not None and not is_queue_name(name):
            raise Invalid(f"Options: {name[:64]!r} is no name of a queue.")
    _check_headers(read.post_headers or {})


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise Invalid(f"options.post_headers: {name!r} is no name of a header.")
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith(_RESERVED_PREFIXES):
            raise Invalid(f"options.post_headers: {name!r} is set by this server alone.")
        if not _FIELD.fullmatch(value):
            raise Invalid(f"options.post_headers: the value of {name!r} must be printable ASCII.")


def refused_schemes(*, mail: bool, trusts: bool) -> Mapping[str, str]:
    """Why this server can't deliver to some schemes; empty where it can to all."""
    reasons = {}
    if not mail:
        reasons["mailto"] = "This server sends no mail: its setting smtp_url is not set."
    for scheme in () if trusts else ("trust+http", "trust+https"):
        reasons[scheme] = (
            f"This server can't deliver to {scheme}: that needs a Keystone where it has an "
            "account, for which trusts are made. Use http or https with options.post_headers."
        )
    return reasons
