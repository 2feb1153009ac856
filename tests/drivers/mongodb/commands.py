"""The commands that the driver sends: counted, and explained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo.database import Database
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

Document = dict[str, Any]

READS_AND_WRITES = frozenset(
    {"find", "aggregate", "count", "distinct", "insert", "update", "delete", "findAndModify"}
)
ENDS = frozenset({"commitTransaction", "abortTransaction"})
COUNTED = READS_AND_WRITES | ENDS | {"getMore", "bulkWrite"}
"""What operations cost: not the connections' own greetings."""


def is_heartbeat(command: Mapping[str, Any]) -> bool:
    """Tell whether a command is of the sessions' heartbeat, which no operation waits for."""
    return str(command[name_of(command)]).endswith("_writers")


@dataclass(frozen=True)
class Explained:
    """A plan: the stages, and what it examined to return what."""

    stages: frozenset[str]
    returned: int
    keys: int


class Commands(CommandListener):
    """A listener that keeps every command that reads, writes or ends a transaction."""

    def __init__(self) -> None:
        self.sent: list[Document] = []

    def started(self, event: CommandStartedEvent) -> None:
        """Keep a command."""
        if event.command_name in COUNTED and not is_heartbeat(event.command):
            self.sent.append(dict(event.command))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing: only what is sent counts."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing: only what is sent counts."""

    def clear(self) -> None:
        """Forget all."""
        self.sent.clear()

    def take(self) -> list[Document]:
        """The commands since the last call."""
        sent, self.sent = self.sent, []
        return sent


def name_of(command: Mapping[str, Any]) -> str:
    """The name of a command: its first key."""
    return str(next(iter(command)))


def queries(command: Mapping[str, Any]) -> Iterator[Document]:
    """The reads within a command, each as a command that can be explained.

    What an update or a delete looks for is explained as a find with the same filter and hint, and
    each branch of a union as an aggregation of its own.
    """
    name = name_of(command)
    collection = command[name]
    if name == "find":
        parts = ("find", "filter", "sort", "hint", "limit", "projection")
        yield {part: command[part] for part in parts if part in command}
    elif name == "aggregate":
        yield from _branches(collection, command["pipeline"], command.get("hint"))
    elif name == "update":
        for update in command["updates"]:
            yield _find(collection, update["q"], update.get("hint"))
    elif name == "delete":
        for delete in command["deletes"]:
            yield _find(collection, delete["q"], delete.get("hint"))
    elif name == "findAndModify":
        # Without a hint, which some servers refuse here: `_id` decides, whatever else is asked.
        yield _find(collection, {"_id": command["query"]["_id"]}, None)


def writes(command: Mapping[str, Any]) -> Iterator[Document]:
    """The updates and deletes within a command, each as it was sent (explained on a mongod)."""
    name = name_of(command)
    for part in ("updates", "deletes"):
        for statement in command.get(part, ()):
            yield {name: command[name], part: [statement]}


def unportable(command: Mapping[str, Any]) -> list[str]:
    """What a command has that not every server of MongoDB's kind can do, or does right."""
    found = (
        [f"hint in {command}"] if name_of(command) == "findAndModify" and "hint" in command else []
    )
    found += [f"upsert in {command}" for upsert in _values(command, "upsert") if upsert]
    return found + [
        f"$$NOW in {stage}" for stage in _values(command, "$replaceWith") if "$$NOW" in repr(stage)
    ]


def explain(database: Database[Document], command: Mapping[str, Any]) -> Explained:
    """Let the server explain a command."""
    answer = database.command({"explain": dict(command), "verbosity": "executionStats"})
    stages = frozenset(_values(answer, "stage"))
    statistics = list(_values(answer, "executionStats"))
    return Explained(
        stages,
        max((entry.get("nReturned", 0) for entry in statistics), default=0),
        max((entry.get("totalKeysExamined", 0) for entry in statistics), default=0),
    )


def _find(collection: str, condition: Document, hint: str | None) -> Document:
    command: Document = {"find": collection, "filter": condition}
    return command if hint is None else {**command, "hint": hint}


def _branches(
    collection: str, pipeline: Sequence[Mapping[str, Any]], hint: str | None
) -> Iterator[Document]:
    own = [stage for stage in pipeline if "$unionWith" not in stage]
    command: Document = {"aggregate": collection, "pipeline": own, "cursor": {}}
    yield command if hint is None else {**command, "hint": hint}
    for stage in pipeline:
        if "$unionWith" in stage:
            union = stage["$unionWith"]
            yield from _branches(union["coll"], union["pipeline"], None)


def _values(answer: Any, key: str) -> Iterator[Any]:
    """All values of a key, at any depth; plans that the planner rejected left out."""
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name == key:
                yield value
            if name not in ("rejectedPlans", "command"):
                yield from _values(value, key)
    elif isinstance(answer, list):
        for value in answer:
            yield from _values(value, key)
