"""The documents of pools and flavors as JSON schemas."""

from zaqar_lite.api.schema import COUNT, LINKS, TEXT, Schema, list_of, object_of
from zaqar_lite.service.pooling.pool import MAX_TEXT, MAX_WEIGHT

_SHORT: Schema = {"type": "string", "maxLength": MAX_TEXT}
_WEIGHT: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_WEIGHT}
_OBJECT: Schema = {"type": "object"}


def pool_schemas() -> dict[str, Schema]:
    """The schemas by name."""
    fields = {"uri": _SHORT, "weight": _WEIGHT, "flavor": _SHORT, "options": _OBJECT}
    pool = object_of(
        ("href", "name", "flavor", "uri", "weight"),
        href=TEXT,
        name=TEXT,
        flavor={"type": ["string", "null"]},
        uri=TEXT,
        weight=_WEIGHT,
        options=_OBJECT,
    )
    flavor = object_of(
        ("href", "name", "pool_list"),
        href=TEXT,
        name=TEXT,
        pool_list=list_of(TEXT),
        capabilities=list_of(TEXT),
    )
    return {
        "Pool": pool,
        "Pools": object_of(("pools", "links"), pools=list_of(pool), links=LINKS),
        "NewPool": {**object_of(("uri", "weight"), **fields), "additionalProperties": False},
        "PoolChange": object_of((), **fields),
        "Drain": object_of(
            ("pool", "state", "started_at", "queues_left", "messages_moved"),
            pool=TEXT,
            state={"enum": ["running", "completed"]},
            started_at=TEXT,
            ended_at={"type": ["string", "null"]},
            queues_left=COUNT,
            messages_moved=COUNT,
            problem={"type": ["string", "null"]},
        ),
        "Flavor": flavor,
        "Flavors": object_of(("flavors", "links"), flavors=list_of(flavor), links=LINKS),
        "NewFlavor": object_of(("pool_list",), pool_list=list_of(TEXT), capabilities=_OBJECT),
        "ListLimit": {"type": "integer", "minimum": 1},
    }
