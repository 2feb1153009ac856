"""Tree to function: closures over headers, by three-valued logic."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from zaqar_lite.domain.filters.tree import (
    MAX_PRIORITY,
    PRIORITY_HEADER,
    And,
    Between,
    Compare,
    Constant,
    EndsWith,
    Exists,
    Expression,
    Headers,
    In,
    Like,
    Node,
    Not,
    Or,
    Rules,
    StartsWith,
    Truth,
)
from zaqar_lite.domain.limits import INT64_MAX, INT64_MIN
from zaqar_lite.domain.models import DEFAULT_PRIORITY


def compile_filter(tree: Node) -> Callable[[Headers], bool]:
    """Make the function that tells whether headers match a filter."""
    evaluate = _compile(tree)
    return lambda headers: evaluate(headers) is True


def compile_priority(tree: Expression) -> Callable[[Headers], int | None]:
    """Make the function that gives the priority of headers, None where nothing matches.

    A filter that is no RULES gives the default priority, 100.
    """
    if not isinstance(tree, Rules):
        matches = _compile(tree)
        return lambda headers: DEFAULT_PRIORITY if matches(headers) is True else None
    rules = [(_compile(rule.condition), rule.priority) for rule in tree.rules]
    default = tree.default

    def evaluate(headers: Headers) -> int | None:
        for condition, priority in rules:
            if condition(headers) is True:
                return _from_header(headers, default) if priority == 255 else priority
        return None

    return evaluate


def _from_header(headers: Headers, default: int) -> int:
    number = _number(headers.get(PRIORITY_HEADER))
    return number if number is not None and 0 <= number <= MAX_PRIORITY else default


_Evaluate: TypeAlias = Callable[[Headers], Truth]


def _compile(node: Node) -> _Evaluate:
    return _COMPILERS[type(node)](node)


def _constant(node: Constant) -> _Evaluate:
    value = node.value
    return lambda _headers: value


def _and(node: And) -> _Evaluate:
    parts = [_compile(part) for part in node.nodes]

    def evaluate(headers: Headers) -> Truth:
        outcome: Truth = True
        for part in parts:
            truth = part(headers)
            if truth is False:
                return False
            if truth is None:
                outcome = None
        return outcome

    return evaluate


def _or(node: Or) -> _Evaluate:
    parts = [_compile(part) for part in node.nodes]

    def evaluate(headers: Headers) -> Truth:
        outcome: Truth = False
        for part in parts:
            truth = part(headers)
            if truth is True:
                return True
            if truth is None:
                outcome = None
        return outcome

    return evaluate


def _not(node: Not) -> _Evaluate:
    inner = _compile(node.node)

    def evaluate(headers: Headers) -> Truth:
        truth = inner(headers)
        return None if truth is None else not truth

    return evaluate


def _exists(node: Exists) -> _Evaluate:
    name = node.name
    return lambda headers: name in headers


def _on_text(name: str, test: Callable[[str], bool]) -> _Evaluate:
    def evaluate(headers: Headers) -> Truth:
        value = headers.get(name)
        return None if value is None else test(value)

    return evaluate


def _on_number(name: str, test: Callable[[int], bool]) -> _Evaluate:
    def evaluate(headers: Headers) -> Truth:
        value = _number(headers.get(name))
        return None if value is None else test(value)

    return evaluate


def _number(text: str | None) -> int | None:
    """Read a signed 64-bit decimal; None for anything else."""
    if text is None or not text.isascii() or len(text) > 20:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isdigit():
        return None
    number = int(text)
    return number if INT64_MIN <= number <= INT64_MAX else None


def _compare(node: Compare) -> _Evaluate:
    operator, name, value = node
    if isinstance(value, str):
        return _on_text(name, _text_test(operator, value))
    return _on_number(name, _number_test(operator, value))


def _text_test(operator: str, value: str) -> Callable[[str], bool]:
    tests: dict[str, Callable[[str], bool]] = {
        "=": lambda header: header == value,
        "<>": lambda header: header != value,
        "<": lambda header: header < value,
        "<=": lambda header: header <= value,
        ">": lambda header: header > value,
        ">=": lambda header: header >= value,
    }
    return tests[operator]


def _number_test(operator: str, value: int) -> Callable[[int], bool]:
    tests: dict[str, Callable[[int], bool]] = {
        "=": lambda header: header == value,
        "<>": lambda header: header != value,
        "<": lambda header: header < value,
        "<=": lambda header: header <= value,
        ">": lambda header: header > value,
        ">=": lambda header: header >= value,
    }
    return tests[operator]


def _starts_with(node: StartsWith) -> _Evaluate:
    value = node.value
    return _on_text(node.name, lambda header: header.startswith(value))


def _ends_with(node: EndsWith) -> _Evaluate:
    value = node.value
    return _on_text(node.name, lambda header: header.endswith(value))


def _in(node: In) -> _Evaluate:
    return _on_text(node.name, frozenset(node.values).__contains__)


def _between(node: Between) -> _Evaluate:
    low, high = node.low, node.high
    return _on_number(node.name, lambda header: low <= header <= high)


def _like(node: Like) -> _Evaluate:
    """Match the pattern with a set of reached places, one bit each, moved on once a character.

    Linear in the header whatever the pattern is; a search with backtracking would not be.
    """
    masks: dict[str, int] = {}
    anywhere = stay = 0
    place = 0
    characters = iter(node.pattern)
    for character in characters:
        if node.escape and character == node.escape:
            literal = next(characters, node.escape)
        elif character == "%":
            stay |= 1 << place
            continue
        elif character == "_":
            anywhere |= 1 << place
            place += 1
            continue
        else:
            literal = character
        masks[literal] = masks.get(literal, 0) | 1 << place
        place += 1
    final = 1 << place

    def test(header: str) -> bool:
        reached = 1
        for character in header:
            reached = (reached & (masks.get(character, 0) | anywhere)) << 1 | reached & stay
            if not reached:
                return False
        return reached & final != 0

    return _on_text(node.name, test)


_COMPILERS: dict[type, Callable[[Any], _Evaluate]] = {
    Constant: _constant,
    And: _and,
    Or: _or,
    Not: _not,
    Exists: _exists,
    Compare: _compare,
    StartsWith: _starts_with,
    EndsWith: _ends_with,
    Like: _like,
    In: _in,
    Between: _between,
}

K = TypeVar("K", bound=Hashable)


class FilterIndex(Generic[K]):
    """Many filters at once: only those are evaluated whose equality conjunct holds.

    A filter that demands `name = 'text'` is found by a look-up of that header; the rest are
    evaluated one by one.
    """

    def __init__(self, filters: Iterable[tuple[K, Node]]) -> None:
        self._by_equality: dict[str, dict[str, list[tuple[K, Callable[[Headers], bool]]]]] = {}
        self._others: list[tuple[K, Callable[[Headers], bool]]] = []
        for key, tree in filters:
            entry = (key, compile_filter(tree))
            demand = _equality(tree)
            if demand is None:
                self._others.append(entry)
            else:
                name, value = demand
                self._by_equality.setdefault(name, {}).setdefault(value, []).append(entry)

    def matches(self, headers: Headers) -> list[K]:
        """Answer the keys of the filters that match."""
        found = [key for key, test in self._others if test(headers)]
        for name, by_value in self._by_equality.items():
            value = headers.get(name)
            if value is not None and value in by_value:
                found.extend(key for key, test in by_value[value] if test(headers))
        return found


def _equality(node: Node) -> tuple[str, str] | None:
    if isinstance(node, Compare) and node.operator == "=" and isinstance(node.value, str):
        return node.name, node.value
    if isinstance(node, And):
        return next(filter(None, map(_equality, node.nodes)), None)
    return None
