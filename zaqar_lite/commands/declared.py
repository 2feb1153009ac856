"""`zaqar-lite queue apply`: make the project's queues match a file."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from zaqar_lite.commands import sdk
from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import OK, Leaves, add_leaf
from zaqar_lite.commands.values import UsageError, whole_seconds

DURATIONS = ("message_ttl", "delay", "dead_letter_ttl", "done_retention", "failed_retention")
LARGEST_FILE = 1_048_576


class Difference(NamedTuple):
    """A key that is not as the file says; `now` is None if the queue does not have the key."""

    queue: str
    act: str
    key: str
    now: object
    wanted: object


def add_verb(verbs: Leaves) -> None:
    """Declare the verb."""
    parser = add_leaf(verbs, "apply", apply, "make queues match a file")
    parser.description = (
        "Make queues match a YAML or JSON file, and print each difference first. "
        "Queues and keys that the file does not name stay as they are."
    )
    parser.epilog = (
        'a file: {"queues": {"orders": {"max_failures": 5, "dead_letter_queue": "dead"}, '
        '"dead": {"message_ttl": "14d"}}}'
    )
    parser.add_argument("file", help="the file; - for standard input")
    parser.add_argument("--dry-run", action="store_true", help="only print the differences")


def apply(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int:
    """Print how the queues differ from the file, then change them."""
    wanted = read(arguments.file)
    found = [
        one for queue, metadata in wanted.items() for one in _differences(client, queue, metadata)
    ]
    output.rows(
        (one._asdict() for one in found),
        ("queue", "act", "key", "now", "wanted"),
        empty="Every queue is as the file says.",
    )
    if not arguments.dry_run:
        for queue in dict.fromkeys(one.queue for one in found):
            client.ensure_queue(queue, wanted[queue])
    return OK


def read(name: str) -> dict[str, dict[str, Any]]:
    """Read a file of queues; return the metadata of each by its name.

    Raises:
        UsageError: the file says something else; nothing was changed.
    """
    import yaml  # noqa: PLC0415 - only this command needs it

    text = sys.stdin.read(LARGEST_FILE + 1) if name == "-" else _text(Path(name))
    if len(text) > LARGEST_FILE:
        message = f"{name} has more than {LARGEST_FILE:,} bytes"
        raise UsageError(message)
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or "it can't be read"
        message = f"{name} is neither YAML nor JSON: {problem}{place}"
        raise UsageError(message) from error
    queues = document.get("queues") if isinstance(document, dict) else None
    if not isinstance(queues, dict) or set(document) != {"queues"}:
        message = f"{name} must have one key, `queues`: an object of queues by name"
        raise UsageError(message)
    return {str(queue): _metadata(str(queue), options) for queue, options in queues.items()}


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(LARGEST_FILE + 1)


def _metadata(queue: str, options: object) -> dict[str, Any]:
    """Return a queue's metadata; options go by their names, as in `QueueOptions`, or their keys."""
    if not isinstance(options, dict | None):
        message = f"the options of {queue} must be an object"
        raise UsageError(message)
    fields: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for name, value in (options or {}).items():
        if name in sdk.queue_options.KEYS or name == "metadata":
            fields[name] = _duration(queue, name, value) if name in DURATIONS else value
        elif str(name).startswith("_"):
            keys[name] = value
        else:
            known = ", ".join([*sdk.queue_options.KEYS, "metadata"])
            message = f"{name!r} of {queue} is not an option of a queue; there are {known}"
            raise UsageError(message)
    try:
        return sdk.queue_options.checked({**sdk.QueueOptions(**fields).as_metadata(), **keys})
    except (TypeError, ValueError) as error:
        message = f"{queue}: {error}"
        raise UsageError(message) from error


def _duration(queue: str, name: str, value: object) -> int:
    try:
        return whole_seconds(str(value))
    except argparse.ArgumentTypeError as error:
        message = f"{name} of {queue}: {error}"
        raise UsageError(message) from error


def _differences(
    client: "sdk.Client", queue: str, metadata: dict[str, Any]
) -> Iterator[Difference]:
    if not client.queue_exists(queue):
        keys: dict[str, Any] = metadata or {"": None}
        yield from (Difference(queue, "create", key, None, value) for key, value in keys.items())
        return
    now = client.get_queue(queue)
    for key, value in sdk.queue_options.differing(metadata, now).items():
        yield Difference(queue, "change", key, now.get(key), value)
