"""Every limit of the API as one value: upstream's names and defaults, then ours."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import accumulate

from zaqar_lite.domain.errors import Invalid

DEFAULT_LIMIT = 10
"""Entries of a page, of which the client has not said how many it wants."""
MIN_MESSAGE_TTL = 60
MIN_CLAIM_TTL = 60
MIN_CLAIM_GRACE = 60
MAX_CLAIM_COUNT = 65_535
MAX_QUEUE_NAME = 64
MAX_PROJECT_ID = 256
MAX_IDEMPOTENCY_KEY = 128
"""Bytes in UTF-8."""
MAX_BODY_DEPTH = 512
MAX_DOCUMENT_DEPTH = 200
"""Of what is read into objects and written again, where 254 is the most; bodies stay as text."""
MAX_PAGE_BYTES = 8 * 1024 * 1024
"""A page, a claim and a pop end with the message with which their bodies have so many bytes."""
INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1


@dataclass(slots=True)
class Limits:
    """Limits and defaults of the transport (zaqar-behaviour, section 0); seconds and bytes.

    A running server has one, which changes only by `replace`: nobody keeps what it says.
    """

    default_message_ttl: int = 3600
    default_message_delay: int = 0
    default_claim_ttl: int = 300
    default_claim_grace: int = 60
    max_queues_per_page: int = 20
    max_messages_per_page: int = 20
    max_pools_per_page: int = 20
    max_flavors_per_page: int = 20
    max_messages_per_claim_or_pop: int = 20
    max_queue_metadata: int = 65_536
    max_messages_post_size: int = 262_144
    max_message_ttl: int = 1_209_600
    max_message_delay: int = 900
    max_claim_ttl: int = 43_200
    max_claim_grace: int = 43_200
    message_delete_with_claim_id: bool = False
    default_subscription_ttl: int = 3600
    max_subscriptions_per_page: int = 20
    # Ours: what a client may ask for besides, and limits on what it can pile up.
    max_large_page: int = 1_000
    max_queues_per_project: int = 100_000
    max_message_headers: int = 32
    max_message_headers_size: int = 8_192
    max_ranges: int = 1_000
    max_filters_per_project: int = 100
    max_subscriptions_per_queue: int = 200
    max_messages_per_post: int = 5_000
    max_copies_per_post: int = 2_000
    max_wait: int = 60
    max_waiters: int = 10_000
    max_waiters_per_project: int = 1_000
    signed_url_max_expires: int = 604_800

    def replace(self, new: "Limits") -> None:
        """Say from now on what `new` says."""
        for field in fields(self):
            setattr(self, field.name, getattr(new, field.name))

    def page(self, *, large: bool) -> int:
        """How many messages a page has at most; a `large` one is asked for by clients of ours."""
        most = self.max_messages_per_page
        return max(most, self.max_large_page) if large else most

    def claim(self, *, large: bool) -> int:
        """How many messages a claim or a pop has at most; a `large` one must be asked for."""
        most = self.max_messages_per_claim_or_pop
        return max(most, self.max_large_page) if large else most


def page_limit(limit: int | None, most: int, default: int = DEFAULT_LIMIT) -> int:
    """How many entries a page shall have: `limit`, or else `default` as far as `most` allows.

    Raises:
        Invalid: none, or more than `most`.
    """
    if limit is None:
        return min(default, most)
    check_range("The limit", limit, 1, most)
    return limit


def fitting(sizes: Iterable[int], held: int = 0) -> int:
    """How many messages of these sizes a page may take that has `held` bytes already.

    It may be more than there are: then all fit, and more would.
    """
    return bisect_left(list(accumulate(sizes, initial=held)), MAX_PAGE_BYTES)


def check_range(what: str, value: float | None, least: int, most: int, unit: str = "") -> None:
    """Refuse a value that is out of range; None is not given, and is none.

    Raises:
        Invalid: says what it may be, and what it is.
    """
    if value is not None and not least <= value <= most:
        raise Invalid(f"{what} must be between {least} and {most}{unit}; it is {value}.")
