"""Every test vector of the format, both ways."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.drivers.opendata.rfc import (
    decode_active,
    encode_active,
    encode_config,
    encode_metadata,
    encode_raw_payload,
    read_config,
)
from zaqar_lite.domain.filters import parse_filter, parse_rules
from zaqar_lite.domain.models import DEFAULT_PRIORITY
from zaqar_lite.storage.opendata import format as encoding
from zaqar_lite.storage.opendata.format import (
    active,
    bookkeeping,
    keys,
    records,
)
from zaqar_lite.storage.opendata.format.keys import RecordType

DOCUMENT = json.loads((Path(__file__).parent / "vectors.json").read_text())
VECTORS: list[dict[str, Any]] = DOCUMENT["vectors"]
KINDS = {
    "payload": RecordType.PAYLOAD,
    "active": RecordType.ACTIVE,
    "done": RecordType.DONE,
    "failed": RecordType.FAILED,
    "attempts": RecordType.ATTEMPTS,
    "config": RecordType.CONFIG,
    "seqblock": RecordType.ID_BLOCK,
    "format": RecordType.FORMAT,
}


def encode_key(record: str, fields: dict[str, Any]) -> bytes:
    match record:
        case "log entry":
            sequence, log = fields["relative_seq"], fields["key"].encode()
            return keys.log_prefix(fields["segment"], log) + encoding.var_u64(sequence)
        case "log seqblock":
            return keys.LOG_BLOCK
        case "log segmentmeta":
            return keys.log_segment_key(fields["segment"])
        case "log listing":
            return keys.log_listing_key(fields["segment"], fields["key"].encode())
    return encode_queue_key(record, fields)


def encode_queue_key(record: str, fields: dict[str, Any]) -> bytes:
    queue = (
        bytes.fromhex(fields["queue_id_hex"])
        if "queue_id_hex" in fields
        else (fields.get("queue_id", "").encode())
    )
    if record == "claim":
        return keys.queue_key(RecordType.CLAIM, queue) + UUID(fields["claim_id"]).bytes
    if record == "attempts" and queue:
        return keys.message_key(RecordType.ATTEMPTS, fields["message_id"], queue)
    if "message_id" in fields:
        return keys.message_key(KINDS[record], fields["message_id"])
    if queue:
        return keys.queue_key(KINDS[record], queue, fields.get("page"))
    return keys.prefix(KINDS[record])


def encode_value(record: str, fields: dict[str, Any]) -> bytes:  # noqa: PLR0911 - one a record
    match record:
        case "payload" if fields["type"] == 1:
            return records.encode_payload(bytes.fromhex(fields["payload_hex"]))
        case "payload" if fields["type"] == 3:
            return encode_raw_payload(bytes.fromhex(fields["payload_hex"]))
        case "metadata":
            headers = [(name, value) for name, value in fields.pop("headers")]
            return encode_metadata(records.Metadata(headers=headers, **fields))
        case "seqblock":
            return bookkeeping.BLOCK.encode(fields["base_sequence"], fields["block_size"])
        case "log segmentmeta":
            return bookkeeping.SEGMENT.encode(fields["start_seq"], fields["start_time_ms"])
        case "active":
            available, in_flight = (
                [list(row.values()) for row in fields[part]] for part in ("available", "in_flight")
            )
            return encode_active(available, in_flight)
        case "done" | "failed":
            return records.ENDED.encode([tuple(item.values()) for item in fields["items"]])
        case "consumer":
            return records.encode_consumer(
                fields.get("uuid") or fields.get("name") or fields["number"]
            )
        case "attempts":
            return records.encode_attempts(records.Attempts(fields["consumers"]))
    raise AssertionError(record)


def reencode(record: str, data: bytes) -> bytes:  # noqa: PLR0911 - one a record
    match record:
        case "payload":
            payload = records.decode_payload(data)
            raw = data[:1] == b"\x03"
            return (encode_raw_payload if raw else records.encode_payload)(payload)
        case "metadata":
            return encode_metadata(records.decode_metadata(data))
        case "seqblock":
            return bookkeeping.BLOCK.encode(*bookkeeping.BLOCK.decode(data))
        case "log segmentmeta":
            return bookkeeping.SEGMENT.encode(*bookkeeping.SEGMENT.decode(data))
        case "active":
            page = decode_active(data)
            return encode_active(page.available, page.in_flight)
        case "done" | "failed":
            return records.ENDED.encode(*records.ENDED.decode(data))
        case "consumer":
            text, end = records.read_consumer(data)
            assert end == len(data)
            return records.encode_consumer(int(text) if data[:1] == b"\x03" else text)
        case "attempts":
            return records.encode_attempts(records.decode_attempts(data))
    raise AssertionError(record)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: str(v["name"]))
def test_vector(vector: dict[str, Any]) -> None:
    data, fields, record = bytes.fromhex(vector["hex"]), dict(vector["fields"]), vector["record"]
    assert len(data) == vector["len"]
    if vector["kind"] == "primitive":
        check_primitive(record, fields, data)
    elif vector["kind"] == "key":
        assert encode_key(record, fields) == data
        if "profile" in fields:
            assert data[:2] == bytes((1, 9 if record == "claim" else KINDS[record].value))
    elif record == "config":
        check_config(fields, data)
    elif "uri" in fields:
        with pytest.raises(encoding.CodecError, match=fields["uri"]):
            records.decode_payload(data)
    else:
        assert encode_value(record, fields) == data
        assert reencode(record, data) == data


def check_config(fields: dict[str, Any], data: bytes) -> None:
    """The filter is left as it is: the RFC does not say how it is written."""
    config = read_config(data)
    assert encode_config(config) == data
    assert config[1:] == (
        fields["max_attempts"],
        fields["done_retention_s"],
        [(name, value) for name, value in fields.get("ext", ())],
    )


def check_primitive(record: str, fields: dict[str, Any], data: bytes) -> None:
    if record == "TerminatedBytes":
        raw = bytes.fromhex(fields["raw"])
        assert encoding.read_terminated(data) == (raw, len(data))
        if not fields["escape_ff"]:
            assert encoding.terminated(raw) == data
    elif record == "Utf8":
        assert encoding.utf8(fields["text"]) == data
        assert encoding.read_utf8(data) == (fields["text"], len(data))
    elif record == "Array":
        texts = encoding.array(encoding.UTF8)
        assert texts.encode(fields["items"]) == data
        assert texts.read(data, 0) == (fields["items"], len(data))
    else:
        assert encoding.var_u64(int(fields["value"])) == data


READERS: dict[str, Callable[[bytes], object]] = {
    "TerminatedBytes": encoding.read_terminated,
    "active value": active.read_active,
    "payload value": records.decode_payload,
}


@pytest.mark.parametrize(
    "error",
    [error for error in DOCUMENT["errors"] if error["record"] in READERS],
    ids=lambda error: str(error["why"]),
)
def test_error_vector(error: dict[str, str]) -> None:
    with pytest.raises(encoding.CodecError):
        READERS[error["record"]](bytes.fromhex(error["hex"]))


@pytest.mark.parametrize("filter_", DOCUMENT["filters"], ids=lambda f: str(f["name"]))
def test_truth_table(filter_: dict[str, Any]) -> None:
    text = filter_["text"]
    if not text.startswith("RULES"):
        matches = parse_filter(text)
        for case in filter_["cases"]:
            assert matches(case["headers"]) == case["match"]
            assert case["priority"] in {None, DEFAULT_PRIORITY}
        return
    priority_of = parse_rules(text)
    for case in filter_["cases"]:
        priority = priority_of(case["headers"])
        assert (priority is not None) == case["match"]
        if case["priority"] is not None:
            assert priority == case["priority"]
