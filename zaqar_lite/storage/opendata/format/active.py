"""Active pages: the RFC's available and in-flight messages, and our extras behind them."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from zaqar_lite.domain.attempts import MAX_CLAIMS
from zaqar_lite.domain.models import Origin
from zaqar_lite.storage.opendata.format import (
    BYTES_16,
    NOTHING,
    UTF8,
    Codec,
    count,
    encode_flagged,
    finish,
    fixed,
    number,
    pack,
    read_count,
    read_flagged,
    several,
    unpack,
)
from zaqar_lite.storage.opendata.format.records import CONSUMER


@lru_cache(512)
def _layout(size: int) -> struct.Struct:
    return struct.Struct("<" + "QBqqH" * size)


def encode_active(elements: Sequence[tuple[bool, Sequence[int], bytes]]) -> bytes:
    """Encode an active page: the RFC's two arrays, then our extras, absent where there are none.

    An element is whether it is in flight, the RFC's fields, and its extra or nothing.
    """
    page = b""
    for in_flight in (False, True):
        rows = [fields for is_held, fields, _ in elements if is_held == in_flight]
        page += count(len(rows), "messages") + pack(_layout(len(rows)), *chain(*rows))
    extras = [extra for *_, extra in elements if extra]
    return page + count(len(extras), "extras") + b"".join(extras) if extras else page


class Extra(NamedTuple):
    """What an entry has beyond the RFC's fields; written only where there is something to say.

    held        when it is visible and its deadline, of a message in flight, whose element has no
                room for them
    ttl_ms      where it is not the deadline minus the creation
    position    where it is not the message id: the entry was moved here
    renamed     its id in this queue is its position, because the id was taken
    last_claim  the 16 bytes of the claim that held it last
    shared      more than one queue was given the message
    moved       where a dead letter comes from: when it was moved, its claims, its source; then its
                last claim, its last client and the reason
    parked      released with a delay: stored as in flight until then, but not claimed
    redriven    how often a dead letter was put back
    """

    held: tuple[int, int] | None = None
    ttl_ms: int | None = None
    position: int | None = None
    renamed: bool | None = None
    last_claim: bytes | None = None
    shared: bool | None = None
    moved: tuple[int, int, str] | None = None
    moved_claim: bytes | None = None
    moved_client: str | None = None
    reason: str | None = None
    parked: bool | None = None
    redriven: int | None = None

    def with_origin(self, origin: Origin) -> "Extra":
        """The same, of a dead letter."""
        claim = origin.last_claim_id
        return self._replace(
            moved=(origin.moved_at, origin.claim_count, origin.source),
            moved_claim=None if claim is None else bytes.fromhex(claim),
            moved_client=origin.last_client_id,
            reason=None if origin.reason == MAX_CLAIMS else origin.reason,
            redriven=origin.redriven or None,
        )

    @property
    def origin(self) -> Origin | None:
        """Where a dead letter comes from."""
        if self.moved is None:
            return None
        moved_at, claims, source = self.moved
        claim = None if self.moved_claim is None else self.moved_claim.hex()
        reason = MAX_CLAIMS if self.reason is None else self.reason
        return Origin(
            source, moved_at, claims, claim, self.moved_client, reason, self.redriven or 0
        )


NO_EXTRA = Extra()
_EXTRA = struct.Struct("<QH")
_HELD = struct.Struct("<QHqq")
_PARTS: Sequence[Codec[Any]] = (
    fixed("<qq"), number("<q"), number("<Q"), NOTHING, BYTES_16, NOTHING,
    several(number("<q"), number("<I"), UTF8),
    BYTES_16, CONSUMER, UTF8, NOTHING, number("<B"),
)  # fmt: skip
"""The fields of extras, which their flags name, beginning with the lowest."""


def encode_extra(message_id: int, extra: Extra) -> bytes:
    """Encode one entry's extras: id, flags, and the fields that the flags name."""
    if extra.held is not None and extra[1:] == NO_EXTRA[1:]:  # a claim writes many of these
        return pack(_HELD, message_id, 1, *extra.held)
    flags, encoded = encode_flagged(_PARTS, extra)
    return pack(_EXTRA, message_id, flags) + encoded


def _read_extra(data: bytes, offset: int) -> tuple[int, Extra, int]:
    (message_id, flags), offset = unpack(_EXTRA, data, offset)
    values, offset = read_flagged(_PARTS, flags, data, offset)
    return message_id, Extra(*values), offset


class Element(NamedTuple):
    """A message of an active page: whether it is in flight, the RFC's fields, and our extra."""

    is_held: bool
    fields: tuple[int, int, int, int, int]
    extra: Extra


def read_active(data: bytes) -> list[Element]:
    """Read an active page, the messages in flight behind the others.

    Extras are in the order of the messages, and those in flight have a deadline: so they find
    their messages even where a queue has an id twice, as dead letters from two queues.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    ends, offset = [], 0
    for _ in range(2):
        size, offset = read_count(data, offset), offset + 2
        fields, offset = unpack(_layout(size), data, offset)
        rows += zip(*[iter(fields)] * 5, strict=True)
        ends.append(len(rows))
    extras, ids, starts = [NO_EXTRA] * len(rows), [row[0] for row in rows], [0, ends[0]]
    if offset < len(data):
        size, offset = read_count(data, offset), offset + 2
        for _ in range(size):
            message_id, extra, offset = _read_extra(data, offset)
            array = int(extra.held is not None)
            with suppress(ValueError):  # where no message has its id
                place = ids.index(message_id, starts[array], ends[array])
                extras[place], starts[array] = extra, place + 1
    finish(data, offset, "active page")
    held = [False] * ends[0] + [True] * (ends[1] - ends[0])
    return list(map(Element, held, rows, extras))
