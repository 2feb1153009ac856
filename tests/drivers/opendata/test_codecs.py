"""Round trips of every record, and the refusal of damaged ones."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.drivers.opendata.rfc import (
    Config,
    decode_active,
    encode_active,
    encode_config,
    encode_metadata,
    encode_raw_payload,
    read_config,
    read_var_u64,
)
from zaqar_lite.domain.attempts import Attempt, Ended
from zaqar_lite.domain.models import Origin, QueueRef
from zaqar_lite.storage.opendata import format as encoding
from zaqar_lite.storage.opendata.format import (
    CodecError,
    active,
    bookkeeping,
    keys,
    records,
)

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, encoding.MAX_U64)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u8 = st.integers(0, 255)
names = st.text(max_size=20)
uuids = st.binary(min_size=16, max_size=16)
consumers = st.one_of(names, st.uuids().map(str))


@settings(deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=10))
@example(b"", b"")
def test_terminated_bytes(raw: bytes, rest: bytes) -> None:
    data = encoding.terminated(raw)
    assert encoding.read_terminated(data + rest) == (raw, len(data))


@settings(deadline=None)
@given(st.binary(max_size=12), st.binary(max_size=12))
def test_terminated_bytes_keep_the_order_and_are_no_prefixes(left: bytes, right: bytes) -> None:
    a, b = encoding.terminated(left), encoding.terminated(right)
    assert (a < b) is (left < right)
    assert left == right or not b.startswith(a)


@settings(deadline=None)
@given(u64, u64)
def test_var_u64_keeps_the_order(left: int, right: int) -> None:
    a, b = encoding.var_u64(left), encoding.var_u64(right)
    assert read_var_u64(a) == (left, len(a))
    assert (a < b) is (left < right)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=6), st.binary(max_size=6))
def test_after_prefix_is_above_every_key_with_the_prefix(prefix: bytes, rest: bytes) -> None:
    end = encoding.after_prefix(prefix)
    assert not end or (prefix + rest < end and not end.startswith(prefix))


origins = st.builds(
    Origin, names, i64, st.integers(0, 1 << 31), st.none() | uuids.map(bytes.hex),
    st.none() | consumers, names, u8,
)  # fmt: skip
extras = st.builds(
    lambda fields, origin: (
        active.Extra(**fields) if origin is None else active.Extra(**fields).with_origin(origin)
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "ttl_ms": i64, "position": u64, "renamed": st.just(True), "last_claim": uuids,
            "shared": st.just(True), "parked": st.just(True),
        },
    ),
    st.none() | origins,
)  # fmt: skip
held_extras = st.builds(lambda extra, held: extra._replace(held=held), extras, st.tuples(i64, i64))
rows = st.lists(st.tuples(st.integers(0, 9) | u64, u8, i64, i64, u16), max_size=20)


@settings(max_examples=50, deadline=None)
@given(rows, rows, st.data())
def test_active_pages(available: list[Any], in_flight: list[Any], data: st.DataObject) -> None:
    """An id may be there more than once; then all entries of it have extras."""
    ids = [row[0] for row in (*available, *in_flight)]
    beyond = {
        place: data.draw(extras if place < len(available) else held_extras)
        for place, message_id in enumerate(ids)
        if ids.count(message_id) > 1 or data.draw(st.booleans())
    }
    encoded = encode_active(available, in_flight, beyond)
    page = decode_active(encoded)
    assert [tuple(row) for row in page.available] == available
    assert [tuple(row) for row in page.in_flight] == in_flight
    assert page.extras == {at: one for at, one in beyond.items() if one != active.NO_EXTRA}


attempts = st.builds(
    Attempt, u16, i64, i64, st.sampled_from(Ended), i64, st.none() | names, st.none() | names,
    st.none() | consumers,
)  # fmt: skip
known = st.lists(consumers, max_size=10).map(tuple).map(records.Attempts) | st.builds(
    records.Attempts, st.lists(consumers, max_size=10).map(tuple), st.integers(1, (1 << 64) - 1),
    u32, st.sampled_from(Ended),
    st.lists(st.tuples(u16, st.integers(0, 1 << 20)), max_size=16).map(tuple),
)  # fmt: skip
bodies = st.binary(max_size=100) | st.just(b"x" * 70_000)
RECORDS: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], object]]] = {
    "a payload": (bodies, records.encode_payload, records.decode_payload),
    "a raw payload": (bodies, encode_raw_payload, records.decode_payload),
    "an entry of the log": (
        st.builds(records.Metadata, u64, i64, i64, i64, u32,
                  st.lists(st.tuples(names, names), max_size=10)),
        encode_metadata, records.decode_metadata,
    ),
    "ended messages": (
        st.lists(st.tuples(u64, i64, u16), max_size=30),
        records.ENDED.encode, lambda data: records.ENDED.decode(data)[0],
    ),
    "who held a message": (known, records.encode_attempts, records.decode_attempts),
    "an attempt": (attempts, records.encode_attempt, records.decode_attempt),
    "a claim": (
        st.builds(records.ClaimRecord, i64, st.integers(0, 1 << 41), st.integers(0, 1 << 41),
                  consumers, st.lists(u64, max_size=20)),
        records.encode_claim, records.decode_claim,
    ),
    "an idempotency key": (
        st.tuples(i64, st.lists(u64, max_size=30),
                  st.builds(lambda digest, size: digest * size, uuids, st.integers(0, 60))),
        lambda key: bookkeeping.IDEMPOTENCY.encode(*key), bookkeeping.IDEMPOTENCY.decode,
    ),
    "a configuration": (
        st.builds(Config, st.binary(max_size=70), u16, u32, st.lists(st.tuples(names, names))),
        encode_config,
        lambda data: read_config(data)._replace(extensions=list(read_config(data).extensions)),
    ),
    "a queue's id": (
        st.builds(QueueRef, names, names.filter(lambda name: "/" not in name)),
        keys.queue_id, keys.read_queue_id,
    ),
}  # fmt: skip


@pytest.mark.parametrize("record", RECORDS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_record_is_read_as_it_was_written(record: str, data: st.DataObject) -> None:
    values, encode, decode = RECORDS[record]
    value = data.draw(values)
    assert decode(encode(value)) == value


@given(attempts)
def test_an_attempt_ends_with_its_record(attempt: Attempt) -> None:
    with pytest.raises(CodecError):
        records.decode_attempt(records.encode_attempt(attempt) + b"x")


DECODERS = [
    records.decode_payload, records.decode_metadata, active.read_active, records.ENDED.decode,
    records.decode_attempts, records.decode_attempt, bookkeeping.CONFIG.decode,
    records.decode_claim,
    bookkeeping.IDEMPOTENCY.decode, bookkeeping.BLOCK.decode, bookkeeping.SEGMENT.decode,
    bookkeeping.STATE.decode, bookkeeping.GARBAGE.decode, bookkeeping.RECORD.decode,
    encoding.read_terminated, read_var_u64, encoding.read_utf8,
    keys.read_record_key, keys.describe,
]  # fmt: skip


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: str(decode.__name__))
@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_codec_error(decode: Any, data: bytes) -> None:
    with suppress(CodecError):
        decode(data)


def test_more_than_a_count_can_hold_is_refused_before_it_is_written() -> None:
    with pytest.raises(CodecError, match="65535"):
        encode_active([(0, 0, 0, 0, 0)] * 65_536)
    with pytest.raises(CodecError, match="65535"):
        encoding.utf8("x" * 65_536)


def test_a_uuid_in_another_spelling_reads_back_as_it_was() -> None:
    text = str(uuid.uuid4()).upper()
    assert records.read_consumer(records.encode_consumer(text))[0] == text
