"""The indexes: created and checked when the store opens, and named as hints by every query."""

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ASCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from zaqar_lite.domain.errors import ConfigurationError

Document = dict[str, Any]

BY_ID = "_id_"
DAY = 86_400


def _index(name: str, *fields: str, **options: object) -> IndexModel:
    return IndexModel([(field, ASCENDING) for field in fields], name=name, **options)


def _only(**condition: object) -> Mapping[str, Any]:
    return {"partialFilterExpression": condition}


_EXISTS = {"$exists": True}

QUEUES: Sequence[IndexModel] = (
    _index("name", "p", "n"),
    _index("source", "t", "n", **_only(t=_EXISTS)),
    _index("exposing", "x", **_only(x=True)),
    _index("moves", "mv.at", **_only(**{"mv.at": _EXISTS})),
    _index("gone", "z", expireAfterSeconds=DAY),
)
MESSAGES: Sequence[IndexModel] = (
    _index("position", "q", "k", unique=True, **_only(k=_EXISTS)),
    _index("state", "q", "s", "k"),
    _index("ready", "q", "s", "p", "k", **_only(s=0)),
    _index("wake", "q", "s", "w", **_only(w=_EXISTS)),
    _index("due", "s", "w", **_only(w=_EXISTS)),
    _index("claim", "q", "cid", **_only(cid=_EXISTS)),
    _index("expiry", "e", expireAfterSeconds=0),
)
KEYS: Sequence[IndexModel] = (
    _index("queue", "q"),
    _index("expiry", "e", expireAfterSeconds=0),
)

_CONFLICTS = frozenset({67, 85, 86})
"""CannotCreateIndex, IndexOptionsConflict, IndexKeySpecsConflict."""
_CHECKED = ("key", "unique", "partialFilterExpression", "expireAfterSeconds")


async def prepare(
    collection: AsyncCollection[Document], indexes: Sequence[IndexModel], *, create: bool
) -> None:
    """Create what is missing (when `create`) and check that every index is as it must be.

    Raises:
        ConfigurationError: an index is missing or another one has its name or its keys; a server
            that ran without it would be slow, or would let two messages have one position.
    """
    if create:
        try:
            await collection.create_indexes(list(indexes))
        except OperationFailure as exc:
            if exc.code not in _CONFLICTS:
                raise
            raise ConfigurationError(
                f"An index of the collection {collection.name} differs from what this version "
                f"needs ({exc.details.get('codeName') if exc.details else exc.code}): "
                f"{_difference(await _existing(collection), indexes)}"
            ) from exc
    difference = _difference(await _existing(collection), indexes)
    if difference:
        raise ConfigurationError(f"Collection {collection.name}: {difference}")


async def _existing(collection: AsyncCollection[Document]) -> Mapping[str, Document]:
    cursor = await collection.list_indexes()
    return {index["name"]: dict(index) for index in await cursor.to_list()}


def _difference(existing: Mapping[str, Document], wanted: Sequence[IndexModel]) -> str:
    """Say which index is missing or different, and the way out; empty when all is well."""
    for model in wanted:
        document = model.document
        found = existing.get(document["name"])
        if found is None:
            return (
                f"the index {document['name']!r} on {_keys(document)} is missing: start once with "
                "create_indexes on and a user who may create it."
            )
        if any(_plain(found.get(name)) != _plain(document.get(name)) for name in _CHECKED):
            return (
                f"the index {document['name']!r} differs from what is needed, {_keys(document)}: "
                "drop it and start again."
            )
    return ""


def _keys(document: Mapping[str, Any]) -> str:
    return "(" + ", ".join(document["key"]) + ")"


def _plain(value: Any) -> Any:  # noqa: ANN401 - any option of an index
    """Make options comparable: SON, dict and int 1 against True."""
    if isinstance(value, Mapping):
        return [(key, _plain(inner)) for key, inner in value.items()]
    return value or None if isinstance(value, bool) else value
