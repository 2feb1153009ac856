"""The indexes and the queries that they serve; every query names its own as a hint.

A queue, a message, a key or a record alone is found by its `_id`. TTL indexes are the broom.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ASCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from zaqar_lite.domain.errors import ConfigurationError

Document = dict[str, Any]

BY_ID = "_id_"
HOUR, DAY = 3_600, 86_400


def _index(name: str, *fields: str, **options: object) -> IndexModel:
    return IndexModel([(field, ASCENDING) for field in fields], name=name, **options)


def _only(**condition: object) -> Mapping[str, Any]:
    return {"partialFilterExpression": condition}


_EXISTS = {"$exists": True}

QUEUES: Sequence[IndexModel] = (
    _index("name", "p", "n"),  # list and count a project's queues
    _index("source", "t", "n", **_only(t=_EXISTS)),  # which have this dead-letter queue
    _index("exposing", "x", **_only(x={"$eq": True})),  # which hand out what waited
    _index("unclear", "u", **_only(u=_EXISTS)),  # whose purged messages are to be deleted
    _index("gone", "z", expireAfterSeconds=DAY),  # forget a tombstone
)
MESSAGES: Sequence[IndexModel] = (
    _index("position", "q", "k", unique=True, **_only(k=_EXISTS)),  # list everything; clear
    _index("sized", "q", "s", "k", "e", "w", "z"),  # candidates; list by state; count, add up bytes
    _index("waking", "q", "s", "w", "k", **_only(w=_EXISTS)),  # due or lapsed in a queue; delayed
    _index("due", "s", "w", **_only(w=_EXISTS)),  # the same over all queues, for the sweep
    _index("claim", "q", "cid", **_only(cid=_EXISTS)),  # what a claim holds, which is all of it
    _index("group", "q", "g", "k", **_only(g=_EXISTS)),  # list a group
    _index("expiry", "e", expireAfterSeconds=0),
)
KEYS: Sequence[IndexModel] = (
    _index("live", "q", "g", "e"),  # count, and find the oldest
    _index("expiry", "e", expireAfterSeconds=0),
)
WRITERS: Sequence[IndexModel] = (_index("at", "at", expireAfterSeconds=DAY),)  # who has died
RECORDS: Sequence[IndexModel] = (
    _index("name", "k", "p", "n", **_only(e=_EXISTS)),  # list a kind
    _index("expiry", "e", expireAfterSeconds=0),
    _index("gone", "z", expireAfterSeconds=HOUR),  # forget a tombstone
)

_CONFLICTS = frozenset({67, 85, 86})
"""CannotCreateIndex, IndexOptionsConflict, IndexKeySpecsConflict."""


async def prepare(
    collection: AsyncCollection[Document],
    indexes: Sequence[IndexModel],
    *,
    create: bool,
    replaced: str = "",
) -> None:
    """Create the indexes that are missing, or only check that they are there.

    Without one the server would be slow, or two messages could get the same position. `replaced`
    is an index of earlier versions, which goes once the others are there.

    Raises:
        ConfigurationError: an index is missing, or another one has its name or its keys.
    """
    if create:
        try:
            await collection.create_indexes(list(indexes))
        except OperationFailure as exc:
            if exc.code not in _CONFLICTS:
                raise
            told = (exc.details or {}).get("errmsg", exc.code)
            raise ConfigurationError(
                f"Collection {collection.name}: an index differs from what is needed; drop it and "
                f"start again. The server says: {told}"
            ) from exc
        if replaced in await collection.index_information():
            await collection.database.command(  # 27, IndexNotFound: another process was faster
                "dropIndexes", collection.name, index=replaced, allowable_errors=[27]
            )
        return
    existing = {index["name"]: index for index in await (await collection.list_indexes()).to_list()}
    for document in (model.document for model in indexes):
        name, keys, found = document["name"], document["key"], existing.get(document["name"])
        if found is None:
            raise ConfigurationError(
                f"Collection {collection.name}: the index {name!r} on ({', '.join(keys)}) is "
                "missing: start once with create_indexes on and a user who may create it."
            )
        is_unique = bool(found.get("unique")) == bool(document.get("unique"))
        if dict(found["key"]) != dict(keys) or not is_unique:
            raise ConfigurationError(
                f"Collection {collection.name}: the index {name!r} differs from what is needed: "
                "drop it and start again with create_indexes on."
            )
