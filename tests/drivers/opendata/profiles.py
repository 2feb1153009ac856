"""What the RFC's vectors have and the store does not write: other keys, payloads and metadata.

Of the forms of keys that the RFCs' texts have, the store writes and reads one.

SEED         version 01 and the type as it is: the RFC's literal bytes, which the store writes.
TAG_2026_01  the type in the high nibble: the key-prefix RFC of January 2026.
SUBSYSTEM    a subsystem byte (05) before SEED: the key-prefix RFC's later form.
"""

import struct
from enum import Enum

from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.encoding import pack, terminated, utf8, var_u64
from zaqar_lite.storage.opendata.format.records import Metadata, Uri, encode_headers


class Profile(Enum):
    """How the two bytes before a key are laid out."""

    SEED = "seed"
    TAG_2026_01 = "tag2026_01"
    SUBSYSTEM = "subsystem"


class LogLayout(Enum):
    """How an entry of the log is keyed; the store writes HEAD."""

    HEAD = "head"
    TEXT = "text"
    SOURCE_2026_01 = "2026_01"


def in_profile(key: bytes, profile: Profile) -> bytes:
    """A key of the store in another profile."""
    if profile is Profile.TAG_2026_01:
        return bytes((key[0], key[1] << 4)) + key[2:]
    return b"\x05" + key if profile is Profile.SUBSYSTEM else key


def read_kind(key: bytes, profile: Profile) -> int:
    """The type of a key of a profile."""
    if profile is Profile.TAG_2026_01:
        return key[1] >> 4
    return keys.read_prefix(key[1:] if profile is Profile.SUBSYSTEM else key)[0]


def log_entry_key(segment: int, sequence: int, log: bytes, layout: LogLayout) -> bytes:
    """Key of a log entry; `sequence` counts from the segment's start (TEXT: from zero)."""
    if layout is LogLayout.TEXT:
        return b"\x01\x01" + terminated(log) + sequence.to_bytes(8, "big")
    if layout is LogLayout.SOURCE_2026_01:
        return b"\x01\x10" + segment.to_bytes(4, "big") + terminated(log) + var_u64(sequence)
    return keys.log_entry_key(segment, sequence, log)


def encode_raw_payload(body: bytes) -> bytes:
    """Encode a body as raw bytes to the end of the value."""
    return b"\x03" + body


def encode_uri(payload: Uri) -> bytes:
    """Encode a payload that lies elsewhere."""
    digest = b"\x00" if payload.sha256 is None else b"\x01" + payload.sha256
    return b"\x02" + utf8(payload.uri) + payload.size.to_bytes(8, "little") + digest


def encode_metadata(metadata: Metadata) -> bytes:
    """Encode an entry of the metadata log.

    Raises CodecError: more than 255 headers, or one longer than 65,535 bytes.
    """
    *fixed, headers = metadata
    return pack(struct.Struct("<QqqqIB"), *fixed, len(headers)) + encode_headers(headers)
