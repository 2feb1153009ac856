"""Instants as users write them."""

from datetime import UTC, datetime

from zaqar_lite.domain.errors import Invalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_instant(text: str) -> int:
    """Read an instant by RFC 3339 as milliseconds since 1970.

    Raises:
        Invalid: it is none, or has no offset from UTC.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None or "T" not in text.upper():
        raise Invalid(
            f"{text[:64]!r} is not an instant: write it by RFC 3339, as 2030-01-31T08:00:00Z."
        )
    try:
        return int((instant - _EPOCH).total_seconds() * 1000)
    except OverflowError:
        raise Invalid(f"{text[:64]!r} is too far away.") from None
