"""The answers of the API as JSON schemas; tempest's client validates by them."""

from typing import Any

Schema = dict[str, Any]

_text = {"type": "string"}
_count = {"type": "integer", "minimum": 0}
_links = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"rel": {"enum": ["next"]}, "href": {"type": "string", "pattern": "^/v2/"}},
        "required": ["rel", "href"],
        "additionalProperties": False,
    },
}
_message = {
    "type": "object",
    "properties": {"id": _text, "href": _text, "ttl": _count, "age": _count, "body": {}},
    "required": ["id", "href", "ttl", "age", "body"],
}
_end = {
    "type": "object",
    "properties": {"href": _text, "age": _count, "created": _text},
    "required": ["href", "age", "created"],
    "additionalProperties": False,
}


def _answer(status: list[int], **properties: Schema) -> Schema:
    return {
        "status_code": status,
        "response_body": {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name not in ("count", "oldest", "newest")],
        },
    }


_queue = {
    "type": "object",
    "properties": {"name": _text, "href": _text, "metadata": {"type": "object"}},
    "required": ["name", "href"],
    "additionalProperties": False,
}
queues = _answer([200], queues={"type": "array", "items": _queue}, links=_links, count=_count)
stats = _answer(
    [200],
    messages={
        "type": "object",
        "properties": {
            "claimed": _count,
            "free": _count,
            "total": _count,
            "ready": _count,
            "delayed": _count,
            "oldest": _end,
            "newest": _end,
        },
        "required": ["claimed", "free", "total"],
        "additionalProperties": False,
    },
)
posted = _answer([201], resources={"type": "array", "items": _text, "minItems": 1})
listed = _answer([200], messages={"type": "array", "items": _message}, links=_links)
message = {"status_code": [200], "response_body": _message}
claimed = _answer([201], messages={"type": "array", "items": _message, "minItems": 1})
claim = _answer(
    [200], age=_count, ttl=_count, href=_text, messages={"type": "array", "items": _message}
)
popped = _answer([200], messages={"type": "array", "items": {"type": "object"}})
signed = _answer(
    [200],
    paths={"type": "array", "items": _text},
    methods={"type": "array", "items": _text},
    project=_text,
    expires=_text,
    signature={"type": "string", "pattern": "^[0-9a-f]{64}$"},
)
