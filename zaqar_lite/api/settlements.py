"""The documents that settle messages of a claim: one by its href, many in one request.

One: `{"claim": {"release_in": 30, "failed": true, "reason": "...", "detail": "..."}}`,
`{"claim": {"ttl": 600}}` or `{"claim": {"dead": true, "reason": "...", "detail": "..."}}`. A
failure without `release_in` waits as the queue's back-off says.

Many: `{"delete": [id, ...], "release": [{"id", "delay", "failed", "reason", "detail"}, ...],
"extend": [{"id", "ttl"}, ...], "dead": [{"id", "reason", "detail"}, ...]}`. Seconds everywhere;
null stands for absent.
"""

from msgspec import Struct
from msgspec.json import Decoder

from zaqar_lite.api.documents import bad_body, decode
from zaqar_lite.domain.settlements import Act, Settlement

_GRACE_MS = 60_000
"""How much longer than its lease an extended message lives at least."""


class _Release(Struct, forbid_unknown_fields=True, gc=False):
    id: str
    delay: int | None = None
    failed: bool = False
    reason: str | None = None
    detail: str | None = None


class _Extend(Struct, forbid_unknown_fields=True, gc=False):
    id: str
    ttl: int


class _Dead(Struct, forbid_unknown_fields=True, gc=False):
    id: str
    reason: str | None = None
    detail: str | None = None


class _Many(Struct, forbid_unknown_fields=True):
    delete: list[str] = []
    release: list[_Release] = []
    extend: list[_Extend] = []
    dead: list[_Dead] = []


class _Claim(Struct, forbid_unknown_fields=True, gc=False):
    release_in: int | None = None
    ttl: int | None = None
    dead: bool | None = None
    failed: bool | None = None
    reason: str | None = None
    detail: str | None = None


class _One(Struct, forbid_unknown_fields=True):
    claim: _Claim


_settlement = Settlement._make  # fields in a row: half the time of naming them
_many = Decoder(_Many)
_one = Decoder(_One)


def parse_many(body: bytes) -> list[Settlement]:
    """Read the settlements of a request, in the order delete, release, extend, dead.

    Raises:
        HttpError: 400, names the field that is wrong.
    """
    document = decode(_many, body)
    ack, release, extend, dead = Act.ACK, Act.RELEASE, Act.EXTEND, Act.DEAD
    found = [_settlement((one, ack, None, False, None, None, 0, 0)) for one in document.delete]
    found += [
        _settlement(
            (
                one.id,
                release,
                None if one.delay is None else one.delay * 1000,
                one.failed,
                one.reason,
                one.detail,
                0,
                0,
            )
        )
        for one in document.release
    ]
    found += [
        _settlement((one.id, extend, None, False, None, None, one.ttl * 1000, _GRACE_MS))
        for one in document.extend
    ]
    found += [
        _settlement((one.id, dead, None, False, one.reason, one.detail, 0, 0))
        for one in document.dead
    ]
    return found


def parse_one(message_id: str, body: bytes) -> Settlement:
    """Read what a PATCH of a claimed message says.

    Raises:
        HttpError: 400, names the field that is wrong.
    """
    act = decode(_one, body).claim
    chosen = [act.release_in is not None, act.ttl is not None, act.dead is not None]
    if sum(chosen) > 1 or (not any(chosen) and act.failed is not True):
        raise bad_body(
            "claim must have exactly one of 'release_in', 'ttl' and 'dead', or \"failed\": true."
        )
    if act.ttl is not None:
        if (act.failed, act.reason, act.detail) != (None, None, None):
            raise bad_body("claim.ttl takes no other field beside it.")
        return Settlement(message_id, Act.EXTEND, ttl_ms=act.ttl * 1000, grace_ms=_GRACE_MS)
    if act.dead is not None:
        if not act.dead or act.failed is not None:
            raise bad_body("claim.dead must be true, with 'reason' and 'detail' at most.")
        return Settlement(message_id, Act.DEAD, reason=act.reason, detail=act.detail)
    delay_ms = None if act.release_in is None else act.release_in * 1000
    return Settlement(message_id, Act.RELEASE, delay_ms, act.failed is True, act.reason, act.detail)
