"""Keys keep an order, and damaged records are refused (`test_vectors.py` has sound ones)."""

import uuid
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.drivers.opendata.rfc import encode_active
from zaqar_lite.domain.attempts import Attempt, Ended
from zaqar_lite.storage.opendata import format as encoding
from zaqar_lite.storage.opendata.format import CodecError, active, bookkeeping, keys, records

u64 = st.integers(0, encoding.MAX_U64)


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
    assert (a < b) is (left < right)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=6), st.binary(max_size=6))
def test_after_prefix_is_above_every_key_with_the_prefix(prefix: bytes, rest: bytes) -> None:
    end = encoding.after_prefix(prefix)
    assert not end or (prefix + rest < end and not end.startswith(prefix))


DECODERS = [
    records.decode_payload, records.decode_metadata, active.read_active, records.ENDED.decode,
    records.decode_attempts, records.decode_attempt, bookkeeping.CONFIG.decode,
    records.decode_claim,
    bookkeeping.IDEMPOTENCY.decode, bookkeeping.BLOCK.decode, bookkeeping.SEGMENT.decode,
    bookkeeping.STATE.decode, bookkeeping.GARBAGE.decode, bookkeeping.RECORD.decode,
    encoding.read_terminated, encoding.read_utf8,
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


@given(st.integers(0, 1 << 41))
def test_a_claim_of_odd_milliseconds_is_read_as_it_was_written(ttl: int) -> None:
    claim = records.ClaimRecord(5, ttl, "worker", [1, 2])
    assert records.decode_claim(records.encode_claim(claim)) == claim


def test_an_attempt_ends_with_its_record() -> None:
    attempt = Attempt(1, 2, 3, Ended.FAILED, 4, "why", None, "worker")
    data = records.encode_attempt(attempt)
    assert records.decode_attempt(data) == attempt
    with pytest.raises(CodecError):
        records.decode_attempt(data + b"x")


def test_a_uuid_in_another_spelling_reads_back_as_it_was() -> None:
    text = str(uuid.uuid4()).upper()
    assert records.read_consumer(records.encode_consumer(text))[0] == text
