"""What the lines of an export may hold: all of them are checked before the first one is stored."""

import json
from typing import Any, NamedTuple, TypeAlias

from zaqar_lite.domain.attempts import MAX_ATTEMPTS, Attempt, Ended
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import MAX_PROJECT_ID
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import MAX_RECORD, MAX_REDRIVEN, Origin

HEAD = {"format": "zaqar-lite", "version": 1}
_LAST = 253_402_300_799_999
"""The end of the year 9999."""
_LONGEST = 0xFFFF_FFFF * 1000
"""Milliseconds that a record's seconds can count."""
_WIDEST = 0xFFFF
"""Bytes of a text in a record."""
_MOST = {
    "created_at": _LAST,
    "expires_at": _LAST,
    "ttl_ms": _LONGEST,
    "delayed_until": _LAST,
    "claimed_until": _LAST,
    "parked_until": _LAST,
    "claim_count": 0xFFFF,
    "failure_count": 0xFFFF_FFFF,
    "priority": 0xFF,
}
_NEEDED = ("created_at", "expires_at", "ttl_ms")

Numbered: TypeAlias = tuple[int, dict[str, Any]]
"""A queue, and the number of the line it stands in."""


class Lines(NamedTuple):
    """The queues, messages and records of a file."""

    queues: list[Numbered]
    messages: list[dict[str, Any]]
    records: list[dict[str, Any]]


def parse(text: bytes) -> Lines:
    """Read and check the lines of an export.

    Raises:
        Invalid: names the line that is wrong.
    """
    queues, messages, records = found = Lines([], [], [])
    lines = ((number, line) for number, line in enumerate(text.split(b"\n"), 1) if line.strip())
    number, head = next(lines, (1, b""))
    try:
        _expect(bool(head), "the file is empty")
        if _read(head) != HEAD:
            raise ValueError(f"the file must begin with {write_line(HEAD)}")
        for number, line in lines:
            value = _read(line)
            _expect(isinstance(value, dict), "it must be an object")
            if "queue" in value:
                _check_queue(value["queue"])
                queues.append((number, value["queue"]))
            elif "record" in value:
                _check_record(value["record"])
                records.append(value["record"])
            else:
                _check_message(value["message"])
                messages.append(value["message"])
    except KeyError as exc:
        raise refused(number, ValueError(f"it has no {exc}")) from exc
    except (ValueError, TypeError) as exc:
        raise refused(number, exc) from exc
    return found


def read_attempt(described: dict[str, Any]) -> Attempt:
    """Make an attempt of what an export says of it."""
    return Attempt(**{**described, "outcome": Ended(described["outcome"])})


def _read(line: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(line.decode(), parse_constant=_refuse)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def refused(number: int, why: Exception) -> Invalid:
    """What to tell who gave a wrong line."""
    return Invalid(f"Line {number} can't be imported: {str(why).rstrip('.')}. Nothing was stored.")


def _check_queue(value: dict[str, Any]) -> None:
    _expect(isinstance(value, dict), "'queue' must be an object")
    _check_name(value["project"], value["name"])
    _expect(isinstance(value["metadata"], dict), "'metadata' must be an object")


def _check_message(value: dict[str, Any]) -> None:
    _expect(isinstance(value, dict), "'message' must be an object")
    _check_name(value["project"], value["queue"])
    for name, most in _MOST.items():
        if name in value or name in _NEEDED:
            _check_number(name, value[name], most)
    lasts = value["expires_at"] - value["created_at"]
    _expect(lasts <= _LONGEST, "'expires_at' is more than 136 years after 'created_at'")
    _check_text("client_id", value.get("client_id", ""))
    headers = value.get("headers", {})
    _expect(isinstance(headers, dict), "'headers' must be an object")
    for name, header in headers.items():
        _check_text("headers", name)
        _check_text("headers", header)
    _check_body(value["body"])
    if value.get("origin") is not None:
        _check_origin(Origin(**value["origin"]))
    attempts = value.get("attempts", [])
    _expect(isinstance(attempts, list), "'attempts' must be a list")
    _expect(len(attempts) <= MAX_ATTEMPTS, f"'attempts' has more than {MAX_ATTEMPTS}")
    for described in attempts:
        _check_attempt(read_attempt(described))


def _check_record(value: dict[str, Any]) -> None:
    _expect(isinstance(value, dict), "'record' must be an object")
    for name in ("kind", "project", "name"):
        _check_text(name, value[name])
    _check_body(value["value"])
    _expect(
        len(value["value"].encode()) <= MAX_RECORD, f"'value' is longer than {MAX_RECORD} bytes"
    )
    if value.get("expires_at") is not None:
        _check_number("expires_at", value["expires_at"], _LAST)


def _check_attempt(attempt: Attempt) -> None:
    _check_number("number", attempt.number, _MOST["claim_count"])
    for name in ("claimed_at", "ended_at", "delay_ms"):
        _check_number(name, getattr(attempt, name), _LAST)
    for name in ("reason", "detail", "client_id"):
        _check_text(name, getattr(attempt, name) or "")


def _check_origin(origin: Origin) -> None:
    _check_text("source", origin.source)
    _check_number("moved_at", origin.moved_at, _LAST)
    _check_number("claim_count", origin.claim_count, _MOST["claim_count"])
    _check_number("redriven", origin.redriven, MAX_REDRIVEN)
    _check_text("reason", origin.reason)
    if origin.last_client_id is not None:
        _check_text("last_client_id", origin.last_client_id)
    claim = origin.last_claim_id
    _expect(claim is None or len(bytes.fromhex(claim)) == 16, "'last_claim_id' is no claim id")


def _check_name(project: object, name: object) -> None:
    _check_text("project", project)
    _check_text("queue", name)
    _expect(len(str(project)) <= MAX_PROJECT_ID, f"a project has at most {MAX_PROJECT_ID} letters")
    _expect(
        is_queue_name(str(name)), f"{name!r} is no name: 1 to 64 letters, digits, '_', '-' or '.'"
    )


def _check_number(name: str, value: object, most: int) -> None:
    _expect(type(value) is int and 0 <= value <= most, f"{name!r} must be a number of 0 to {most}")


def _check_text(name: str, value: object) -> None:
    _expect(isinstance(value, str), f"{name!r} must be of type str")
    _expect(len(str(value).encode()) <= _WIDEST, f"{name!r} is longer than {_WIDEST} bytes")


def _check_body(body: object) -> None:
    _expect(isinstance(body, str), "'body' must be of type str")
    str(body).encode()
    try:
        json.loads(str(body), parse_constant=_refuse)
    except RecursionError as exc:
        raise ValueError("the body is nested too deeply") from exc


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def write_line(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Write a line of an export."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
