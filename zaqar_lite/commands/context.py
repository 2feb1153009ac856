"""`zaqar-lite context`: give servers names, and choose between them."""

import argparse
import sys
from collections.abc import Callable

from zaqar_lite.commands import contexts, sdk
from zaqar_lite.commands.argument_types import UsageError, flag
from zaqar_lite.commands.base_command import NOT_FOUND, OK, USAGE, Leaves, Verbs, explain
from zaqar_lite.commands.output import Output

_KEYS = frozenset({"key", "key_env"})
_HELP = {
    "key": "a key of the server; - reads it from standard input",
    "key_env": "name of the variable that holds the key",
}
Handler = Callable[[contexts.Contexts, argparse.Namespace, Output], None]


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = Verbs.of(subparsers, "context", "give servers names, and choose between them")
    parser = _verb(verbs, "add", add, "name a server, or change what a name means")
    parser.add_argument("name")
    for field in contexts.FIELDS:
        option = f"--{field.replace('_', '-')}"
        parser.add_argument(option, help=_HELP.get(field, f"the {option} of its commands"))
    _verb(verbs, "use", use, "use a context where none is asked for").add_argument("name")
    _verb(verbs, "remove", remove, "forget a context").add_argument("name")
    _verb(verbs, "list", list_, "list the contexts")


def add(known: contexts.Contexts, arguments: argparse.Namespace, output: Output) -> None:
    """Name a server; the first one is used from now on."""
    given = vars(arguments)
    said = {field: given[field] for field in contexts.FIELDS if given[field] is not None}
    if said.get("key") == "-":
        said["key"] = sys.stdin.readline().strip()
    if "key" in said and "key_env" in said:
        raise ValueError("--key and --key-env exclude each other")
    if "url" in said:
        sdk.base_client.base_of(said["url"])  # a wrong one would always fail
    before = known.named.get(arguments.name, {})
    if not said and not before:
        raise UsageError(f"say what {arguments.name} means: --url, --project or another option")
    if not _KEYS.isdisjoint(said):  # one takes the place of the other
        before = {field: value for field, value in before.items() if field not in _KEYS}
    known.named[arguments.name] = before | said
    known.current = known.current or arguments.name
    contexts.save(known)
    output.record(_row(known, arguments.name))


def use(known: contexts.Contexts, arguments: argparse.Namespace, output: Output) -> None:
    """Choose a context."""
    known.get(arguments.name)
    known.current = arguments.name
    contexts.save(known)
    output.record(_row(known, arguments.name))


def remove(known: contexts.Contexts, arguments: argparse.Namespace, output: Output) -> None:
    """Forget a context."""
    known.get(arguments.name)
    del known.named[arguments.name]
    if known.current == arguments.name:
        known.current = None
    contexts.save(known)
    output.record({"name": arguments.name, "removed": True})


def list_(known: contexts.Contexts, arguments: argparse.Namespace, output: Output) -> None:  # noqa: ARG001 - as all verbs
    """List contexts."""
    output.rows(
        (_row(known, name) for name in sorted(known.named)),
        ("name", "current", *contexts.FIELDS),
        empty="There are no contexts (zaqar-lite context add NAME --url URL).",
    )


def _row(known: contexts.Contexts, name: str) -> dict[str, object]:
    said = dict(known.named[name])
    if "key" in said:
        said["key"] = f"{said['key'].rpartition('_')[0]}_..."
    return {"name": name, "current": name == known.current, **said}


def _verb(verbs: Verbs, name: str, handler: Handler, text: str) -> argparse.ArgumentParser:
    parser = verbs.subparsers.add_parser(name, help=text, description=text)
    flag(parser, "--json", "JSON lines, as in a pipe")
    parser.set_defaults(run=lambda arguments: _run(handler, arguments))
    return parser


def _run(handler: Handler, arguments: argparse.Namespace) -> int:
    try:
        handler(contexts.load(), arguments, Output(as_json=arguments.json))
    except contexts.UnknownContext as error:
        return explain(error, NOT_FOUND)
    except (UsageError, ValueError, OSError) as error:
        return explain(error, USAGE)
    return OK
