"""The indexes: created and checked when the store opens, and named as hints by every query."""

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
    _index("live", "q", "s", "k", "e", "w"),
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
_CHECKED = ("key", "unique", "partialFilterExpression", "expireAfterSeconds")


async def prepare(
    collection: AsyncCollection[Document], indexes: Sequence[IndexModel], *, create: bool
) -> None:
    """Create what is missing (when `create`) and check that every index means what it must.

    Raises:
        ConfigurationError: an index is missing, or another index has its name or its keys. Without
            it the server would be slow, or two messages could get the same position.
    """
    existing = await _existing(collection)
    missing = [model for model in indexes if model.document["name"] not in existing]
    if create and missing:
        try:
            await collection.create_indexes(missing)
        except OperationFailure as exc:
            if exc.code not in _CONFLICTS:
                raise
            raise ConfigurationError(
                f"Collection {collection.name}: another index already has the keys of one that "
                f"this server needs; drop it and start again ({exc.details or exc.code})."
            ) from exc
        existing = await _existing(collection)
    difference = _difference(existing, indexes)
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
        for option in _CHECKED:
            if meaning(option, found.get(option)) != meaning(option, document.get(option)):
                return (
                    f"the index {document['name']!r} differs from what is needed: its {option} is "
                    f"{_shown(found.get(option))} and should be {_shown(document.get(option))}. "
                    "Drop it and start again."
                )
    return ""


def meaning(option: str, value: Any) -> Any:  # noqa: ANN401 - any option of an index
    """What an option of an index means, whatever form a server gives it back in."""
    if option == "key":
        return [(field, int(direction)) for field, direction in dict(value or {}).items()]
    if option == "partialFilterExpression":
        return sorted(_conditions(value or {}), key=repr)
    return value or None if option == "unique" else value


def _conditions(expression: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Write an expression as (field, operator, value), because servers answer it in several forms.

    `{x: 1}` means `{x: {$eq: 1}}`, and `$and` means all conditions in its list.
    """
    found: list[tuple[str, str, Any]] = []
    for field, condition in expression.items():
        if field == "$and":
            found += [each for part in condition for each in _conditions(part)]
        elif isinstance(condition, Mapping) and any(name.startswith("$") for name in condition):
            for name, value in condition.items():
                found.append((field, name, bool(value) if name == "$exists" else value))
        else:
            found.append((field, "$eq", condition))
    return found


def _keys(document: Mapping[str, Any]) -> str:
    return "(" + ", ".join(document["key"]) + ")"


def _shown(value: Any) -> str:  # noqa: ANN401 - any option of an index
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_shown(inner)}" for name, inner in value.items()) + "}"
    return str(value)
