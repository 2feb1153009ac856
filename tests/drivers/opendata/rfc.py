"""What another writer of the RFC's format writes, and what its reader reads, where the store's own
code does only the other half."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zaqar_lite.storage.opendata.format import active, utf8
from zaqar_lite.storage.opendata.format.active import NO_EXTRA, Extra, read_active
from zaqar_lite.storage.opendata.format.bookkeeping import CONFIG
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import ENDED, HEADERS, POSTED, Metadata


def encode_raw_payload(body: bytes) -> bytes:
    """Encode a body as raw bytes to the end of the value."""
    return b"\x03" + body


def encode_uri(uri: str, size: int) -> bytes:
    """Encode a payload that lies elsewhere."""
    return b"\x02" + utf8(uri) + size.to_bytes(8, "little") + b"\x00"


def encode_metadata(metadata: Metadata) -> bytes:
    """Encode an entry of the metadata log.

    Raises CodecError: more than 255 headers, or one longer than 65,535 bytes.
    """
    *fixed, headers = metadata
    return POSTED.encode(fixed, HEADERS.encode(headers))


class Available(NamedTuple):
    """A message that waits."""

    message_id: int
    priority: int
    visible_at: int
    retention_deadline: int
    attempts: int


class Active(NamedTuple):
    """An active page: what waits, the fields of what is claimed, and extras by place."""

    available: list[Available]
    in_flight: list[tuple[int, int, int, int, int]]
    extras: Mapping[int, Extra]


def decode_active(data: bytes) -> Active:
    """Read an active page."""
    elements = read_active(data)
    return Active(
        [Available(*one.fields) for one in elements if not one.is_held],
        [one.fields for one in elements if one.is_held],
        {at: one.extra for at, one in enumerate(elements) if one.extra != NO_EXTRA},
    )


def encode_active(
    available: Sequence[Sequence[int]], in_flight: Sequence[Sequence[int]] = ()
) -> bytes:
    """Encode an active page."""
    rows = [(False, row) for row in available] + [(True, row) for row in in_flight]
    return active.encode_active([(*row, b"") for row in rows])


def merged_pages(kind: RecordType, pages: Mapping[bytes, bytes]) -> bytes:
    """One page that has what several have."""
    if kind is not RecordType.ACTIVE:
        return ENDED.encode([one for page in pages.values() for one in ENDED.decode(page)[0]])
    elements = [one for page in pages.values() for one in read_active(page)]
    return active.encode_active([
        (held, fields, b"" if extra == NO_EXTRA else active.encode_extra(fields[0], extra))
        for held, fields, extra in elements
    ])  # fmt: skip


class Config(NamedTuple):
    """A queue's configuration; the RFC leaves open how the filter is written."""

    filter: bytes
    max_attempts: int
    done_retention_s: int
    extensions: Sequence[tuple[str, str]] = ()


def read_config(data: bytes) -> Config:
    """Read a queue's configuration with its filter."""
    filter_, attempts, retention_s, extensions = CONFIG.decode(data)
    return Config(filter_, attempts, retention_s, extensions or [])


def encode_config(config: Config) -> bytes:
    """Encode a queue's configuration, without extensions where there are none."""
    return CONFIG.encode(*config[:3], config.extensions or None)
