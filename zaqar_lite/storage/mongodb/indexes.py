"""The indexes: created or checked when the store opens, and named as hints by every query."""

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
    _index("name", "p", "n"),
    _index("source", "t", "n", **_only(t=_EXISTS)),
    _index("exposing", "x", **_only(x={"$eq": True})),
    _index("unclear", "u", **_only(u=_EXISTS)),
    _index("gone", "z", expireAfterSeconds=DAY),
)
MESSAGES: Sequence[IndexModel] = (
    _index("position", "q", "k", unique=True, **_only(k=_EXISTS)),
    _index("sized", "q", "s", "k", "e", "w", "z"),
    _index("waking", "q", "s", "w", "k", **_only(w=_EXISTS)),
    _index("due", "s", "w", **_only(w=_EXISTS)),
    _index("claim", "q", "cid", **_only(cid=_EXISTS)),
    _index("group", "q", "g", "k", **_only(g=_EXISTS)),
    _index("expiry", "e", expireAfterSeconds=0),
)
KEYS: Sequence[IndexModel] = (
    _index("live", "q", "g", "e"),
    _index("expiry", "e", expireAfterSeconds=0),
)
WRITERS: Sequence[IndexModel] = (_index("at", "at", expireAfterSeconds=DAY),)
RECORDS: Sequence[IndexModel] = (
    _index("name", "k", "p", "n", **_only(e=_EXISTS)),
    _index("expiry", "e", expireAfterSeconds=0),
    _index("gone", "z", expireAfterSeconds=HOUR),
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
