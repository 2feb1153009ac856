"""What a project may have at most, and how much it may ask for in a second."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.json_values import read_json

_LARGEST = 10**15
_Stock = Annotated[int, Meta(ge=0, le=_LARGEST)] | None
_Rate = Annotated[int, Meta(ge=1, le=_LARGEST)] | None


class Quota(Struct, frozen=True):
    """The quotas of a project; None is no quota.

    Stocks, whose excess is refused with 403: `queues`, `messages`, `bytes` (of message bodies),
    `subscriptions`, `waiters` (requests that wait for messages), `connections`. Rates a second,
    whose excess is refused with 429: the others. Reading is to list, look, claim and settle;
    writing is to post; managing is everything else.
    """

    queues: _Stock = None
    messages: _Stock = None
    bytes: _Stock = None
    subscriptions: _Stock = None
    waiters: _Stock = None
    connections: _Stock = None
    read_requests: _Rate = None
    read_bytes: _Rate = None
    write_requests: _Rate = None
    write_bytes: _Rate = None
    manage_requests: _Rate = None
    manage_bytes: _Rate = None

    def changed(self, document: Mapping[str, Any]) -> "Quota":
        """Make the quota in which what `document` names is as it says; null lifts one.

        Raises:
            Invalid: it names something else, or a value is no whole number in range.
        """
        if unknown := next((name for name in document if name not in NAMES), None):
            raise Invalid(f"{unknown!r} is no quota: there are {', '.join(NAMES)}.")
        quota: Quota = read_json({**self.as_document(), **document}, Quota, "The quotas")
        return quota

    def as_document(self) -> dict[str, int | None]:
        """All quotas by name."""
        return msgspec.structs.asdict(self)

    @property
    def rates(self) -> tuple[int | None, ...]:
        """The rates: requests and bytes of reading, of writing and of managing."""
        return attrgetter(*RATES)(self)


NAMES = Quota.__struct_fields__
RATES = NAMES[6:]
UNLIMITED = Quota()
QuotaOf = Callable[[str], Quota]


def unlimited(_: str) -> Quota:
    """The quota of each project where there are none."""
    return UNLIMITED
