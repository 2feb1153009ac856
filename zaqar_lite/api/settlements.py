"""The documents that settle messages of a claim: one by its href, many in one request.

One: `{"claim": {"release_in": 30, "failed": true, "reason": "...", "detail": "..."}}`,
`{"claim": {"ttl": 600}}` or `{"claim": {"dead": true, "reason": "...", "detail": "..."}}`. A
failure without `release_in` waits as the queue's back-off says.

Many: `{"delete": [id, ...], "release": [{"id", "delay", "failed", "reason", "detail"}, ...],
"extend": [{"id", "ttl"}, ...], "dead": [{"id", "reason", "detail"}, ...]}`. Seconds everywhere.
"""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.api.documents import bad_body
from zaqar_lite.domain.models import Act, Settlement

_GRACE_MS = 60_000
"""How much longer than its lease an extended message lives at least."""

_KINDS: Mapping[str, tuple[Act, Mapping[str, type]]] = {
    "release": (
        Act.RELEASE,
        {"id": str, "delay": int, "failed": bool, "reason": str, "detail": str},
    ),
    "extend": (Act.EXTEND, {"id": str, "ttl": int}),
    "dead": (Act.DEAD, {"id": str, "reason": str, "detail": str}),
}
_WORDS = {str: "a string", int: "a int", bool: "true or false"}


def parse_many(document: Mapping[str, Any]) -> list[Settlement]:
    """Read the settlements of a request, in the order delete, release, extend, dead.

    Raises:
        HttpError: 400, names the field that is wrong.
    """
    unknown = sorted(set(document) - {"delete", *_KINDS})
    if unknown:
        raise bad_body(
            f"Unknown field {unknown[0]!r}: it takes 'delete', 'release', 'extend' and 'dead'."
        )
    found: list[Settlement] = []
    for message_id in _list(document, "delete"):
        if not isinstance(message_id, str):
            raise bad_body('"delete" must be a list of message ids.')
        found.append(Settlement(message_id, Act.ACK))
    for kind in _KINDS:
        for index, entry in enumerate(_list(document, kind)):
            where = f"{kind}[{index}]"
            if not isinstance(entry, dict) or "id" not in entry:
                raise bad_body(f'{where} must be an object with an "id".')
            found.append(_settlement(kind, entry["id"], entry, where))
    return found


def parse_one(message_id: str, document: Mapping[str, Any]) -> Settlement:
    """Read what a PATCH of a claimed message says.

    Raises:
        HttpError: 400, names the field that is wrong.
    """
    act = document.get("claim")
    if set(document) != {"claim"} or not isinstance(act, dict):
        raise bad_body(
            "With a claim_id the body must be an object with the one field 'claim': "
            '{"claim": {"release_in": 30}}, {"claim": {"ttl": 600}} or {"claim": {"dead": true}}.'
        )
    chosen = {"release_in", "ttl", "dead"} & set(act)
    has_failed = not chosen and act.get("failed") is True
    if len(chosen) != 1 and not has_failed:
        raise bad_body(
            "claim must have exactly one of 'release_in', 'ttl' and 'dead', or \"failed\": true."
        )
    fields = dict(act)
    if "dead" in chosen:
        if fields.pop("dead") is not True:
            raise bad_body("claim.dead must be true.")
        return _settlement("dead", message_id, fields, "claim")
    if "ttl" in chosen:
        return _settlement("extend", message_id, fields, "claim")
    if not has_failed:
        fields["delay"] = fields.pop("release_in")
    return _settlement("release", message_id, fields, "claim")


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name, [])
    if not isinstance(value, list):
        raise bad_body(f'The value of the "{name}" field must be a list.')
    return value


def _settlement(kind: str, message_id: str, fields: Mapping[str, Any], where: str) -> Settlement:
    act, types = _KINDS[kind]
    values: dict[str, Any] = {}
    for name, value in fields.items():
        wanted = types.get(name)
        if wanted is None:
            raise bad_body(f"Unknown field {name!r} in {where}.")
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise bad_body(f"{where}: the value of {name!r} must be {_WORDS[wanted]}.")
        values[name] = value
    if act is Act.EXTEND and "ttl" not in values:
        raise bad_body(f"{where} needs a 'ttl'.")
    delay = values.get("delay")
    return Settlement(
        message_id,
        act,
        None if delay is None else delay * 1000,
        values.get("failed", False),
        values.get("reason"),
        values.get("detail"),
        values.get("ttl", 0) * 1000,
        _GRACE_MS,
    )
