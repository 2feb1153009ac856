"""The tree of a filter: what the text says and the record stores; and its bounds."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import DEFAULT_PRIORITY

MAX_TEXT = 65_536
"""Bytes of a filter's text."""
MAX_DEPTH = 16
MAX_NODES = 256
MAX_PATTERN = 256
"""Characters of a LIKE pattern in a filter's text; a stored tree may have a longer one."""
MAX_PRIORITY = 254
PRIORITY_FROM_HEADER = 255
PRIORITY_HEADER = "priority"

Headers: TypeAlias = Mapping[str, str]
Truth: TypeAlias = bool | None
"""None is UNKNOWN."""


class Constant(NamedTuple):
    """TRUE or FALSE."""

    value: bool


class And(NamedTuple):
    """All of 2 to 255 expressions."""

    nodes: "tuple[Node, ...]"


class Or(NamedTuple):
    """Any of 2 to 255 expressions."""

    nodes: "tuple[Node, ...]"


class Not(NamedTuple):
    """The opposite; of UNKNOWN, UNKNOWN."""

    node: "Node"


class Exists(NamedTuple):
    """The header is there."""

    name: str


class Compare(NamedTuple):
    """Compare a header with text, or as a number: `operator` is one of = <> < <= > >=."""

    operator: str
    name: str
    value: str | int


class StartsWith(NamedTuple):
    """The header begins with `value`."""

    name: str
    value: str


class EndsWith(NamedTuple):
    """The header ends with `value`."""

    name: str
    value: str


class Like(NamedTuple):
    """The header has the form of `pattern`; `escape` is one character, or empty."""

    name: str
    pattern: str
    escape: str


class In(NamedTuple):
    """The header is one of `values`."""

    name: str
    values: tuple[str, ...]


class Between(NamedTuple):
    """The header is a number from `low` to `high`, both included."""

    name: str
    low: int
    high: int


Node: TypeAlias = (
    Constant | And | Or | Not | Exists | Compare | StartsWith | EndsWith | Like | In | Between
)


class Rule(NamedTuple):
    """A condition and the priority it gives; 255 takes it from the header."""

    condition: Node
    priority: int


class Rules(NamedTuple):
    """Rules in order; they match what any of them matches."""

    rules: tuple[Rule, ...]
    default: int = DEFAULT_PRIORITY


Expression: TypeAlias = Node | Rules

OPERATORS = ("=", "<>", "<", "<=", ">", ">=")


def check_size(tree: Expression) -> None:
    """Check the bounds that keep a match cheap: depth and number of nodes.

    Raises:
        Invalid: too deep or too many.
    """
    level = _roots(tree)
    nodes = depth = 0
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if nodes > MAX_NODES or depth > MAX_DEPTH:
            raise Invalid(
                f"The filter is too large: at most {MAX_NODES} conditions, nested at most "
                f"{MAX_DEPTH} deep."
            )
        level = [child for node in level for child in _children(node)]


def count_nodes(tree: Expression) -> int:
    """Count the nodes of a tree, or of all the conditions of rules."""
    nodes, level = 0, _roots(tree)
    while level:
        nodes += len(level)
        level = [child for node in level for child in _children(node)]
    return nodes


def _roots(tree: Expression) -> list[Node]:
    return [rule.condition for rule in tree.rules] if isinstance(tree, Rules) else [tree]


def _children(node: Node) -> tuple[Node, ...]:
    if isinstance(node, And | Or):
        return node.nodes
    return (node.node,) if isinstance(node, Not) else ()
