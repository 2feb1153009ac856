"""What a project may have at most, and how much it may ask for in a second."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from zaqar_lite.domain.errors import Invalid

LARGEST = 10**15


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of a project; None is no quota.

    Stocks, whose excess is refused with 403: `queues`, `messages`, `bytes` (of message bodies),
    `subscriptions`, `waiters` (requests that wait for messages), `connections`. Rates a second,
    whose excess is refused with 429: the others. Reading is to list, look, claim and settle;
    writing is to post; managing is everything else.
    """

    queues: int | None = None
    messages: int | None = None
    bytes: int | None = None
    subscriptions: int | None = None
    waiters: int | None = None
    connections: int | None = None
    read_requests: int | None = None
    read_bytes: int | None = None
    write_requests: int | None = None
    write_bytes: int | None = None
    manage_requests: int | None = None
    manage_bytes: int | None = None

    def changed(self, document: Mapping[str, Any]) -> "Quota":
        """Make the quota in which what `document` names is as it says; null lifts one.

        Raises:
            Invalid: it names something else, or a value is no whole number in range.
        """
        for name, value in document.items():
            if name not in NAMES:
                raise Invalid(f"{name!r} is no quota: there are {', '.join(NAMES)}.")
            least = 1 if name in RATES else 0
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_whole and least <= value <= LARGEST):
                raise Invalid(f"The quota {name!r} is {least} to {LARGEST}, or null for none.")
        return replace(self, **document)

    def as_document(self) -> dict[str, int | None]:
        """All quotas by name."""
        return asdict(self)

    @property
    def rates(self) -> tuple[int | None, ...]:
        """The rates: requests and bytes of reading, of writing and of managing."""
        return tuple(getattr(self, name) for name in RATES)


NAMES = tuple(field.name for field in fields(Quota))
RATES = NAMES[6:]
UNLIMITED = Quota()
QuotaOf = Callable[[str], Quota]


def unlimited(_: str) -> Quota:
    """The quota of each project where there are none."""
    return UNLIMITED
