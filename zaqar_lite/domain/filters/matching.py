"""Tree to function: closures over headers, by three-valued logic, within a budget."""

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters.tree import (
    MAX_PRIORITY,
    PRIORITY_FROM_HEADER,
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
    Rule,
    Rules,
    StartsWith,
    Truth,
    count_nodes,
)
from zaqar_lite.domain.limits import INT64_MAX, INT64_MIN
from zaqar_lite.domain.models import DEFAULT_PRIORITY

MAX_STEPS = 100_000
"""Steps that one filter may take for one message: about 10 ms."""
MAX_STEPS_IN_ALL = 5_000_000
"""Steps that all filters together may take for one post: about half a second."""


class Budget:
    """The steps that are left for one post.

    A step is a condition, or a character of a header that LIKE looks at: about 0.1 us. A long
    pattern takes more than one step a character.
    """

    __slots__ = ("_floor", "_left")

    def __init__(self) -> None:
        self._left = MAX_STEPS_IN_ALL
        self._floor = 0

    def begin(self, steps: int) -> None:
        """Begin with one filter and one message, of so many conditions.

        Raises:
            Invalid: as `spend`.
        """
        self._floor = max(0, self._left - MAX_STEPS)
        self.spend(steps)

    def spend(self, steps: int) -> None:
        """Take steps.

        Raises:
            Invalid: more than one evaluation, or than all of a post together, may take.
        """
        self._left -= steps
        if self._left < self._floor:
            raise Invalid(
                f"The filters take more than {MAX_STEPS:,} steps for one message, or more than "
                f"{MAX_STEPS_IN_ALL:,} for one post: shorten the headers or the LIKE patterns, or "
                "post fewer messages at once."
            )


class Filter:
    """A filter as a function: tells whether headers match it.

    `demand` is a header and its text without which nothing matches, or None.
    """

    __slots__ = ("_evaluate", "_size", "demand")

    def __init__(self, tree: Node) -> None:
        self._evaluate = _compile(tree)
        self._size = count_nodes(tree)
        self.demand = _equality(tree)

    def __call__(self, headers: Headers, budget: Budget | None = None) -> bool:
        """Evaluate within a post's budget, or within one of its own.

        Raises:
            Invalid: the budget is used up.
        """
        budget = budget or Budget()
        budget.begin(self._size)
        return self._evaluate(headers, budget) is True


class Priority(Protocol):
    """Gives the priority of headers, None where no rule matches."""

    def __call__(self, headers: Headers, budget: Budget | None = None) -> int | None:
        """Evaluate; as `Filter`."""


def compile_priority(tree: Expression) -> Priority:
    """Make the function that gives the priority of headers, None where nothing matches.

    A filter that is no RULES gives the default priority, 100.
    """
    if not isinstance(tree, Rules):
        return compile_priority(Rules((Rule(tree, DEFAULT_PRIORITY),)))
    rules = [(_compile(rule.condition), rule.priority) for rule in tree.rules]
    default, size = tree.default, count_nodes(tree)

    def priority_of(headers: Headers, budget: Budget | None = None) -> int | None:
        budget = budget or Budget()
        budget.begin(size)
        for condition, priority in rules:
            if condition(headers, budget) is True:
                from_header = priority == PRIORITY_FROM_HEADER
                return _from_header(headers, default) if from_header else priority
        return None

    return priority_of


def _from_header(headers: Headers, default: int) -> int:
    number = _number(headers.get(PRIORITY_HEADER))
    return number if number is not None and 0 <= number <= MAX_PRIORITY else default


_Evaluate: TypeAlias = Callable[[Headers, Budget], Truth]
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compile(node: Node) -> _Evaluate:  # noqa: PLR0911 - one for each kind of node
    match node:
        case Constant(value):
            return lambda _headers, _budget: value
        case And(nodes):
            return _joined(nodes, decisive=False)
        case Or(nodes):
            return _joined(nodes, decisive=True)
        case Not(inner):
            return _opposite(_compile(inner))
        case Exists(name):
            return lambda headers, _budget: name in headers
        case Compare(sign, name, wanted):
            test, on = _TESTS[sign], _on_text if isinstance(wanted, str) else _on_number
            return on(name, lambda header: test(header, wanted))
        case StartsWith(name, text):
            return _on_text(name, lambda header: header.startswith(text))
        case EndsWith(name, text):
            return _on_text(name, lambda header: header.endswith(text))
        case In(name, values):
            return _on_text(name, frozenset(values).__contains__)
        case Between(name, low, high):
            return _on_number(name, lambda header: low <= header <= high)
        case Like():
            return _like(node)


def _joined(nodes: Iterable[Node], *, decisive: bool) -> _Evaluate:
    """Join conditions by AND, where one that is false decides, or by OR, where one that is true."""
    parts = [_compile(node) for node in nodes]

    def evaluate(headers: Headers, budget: Budget) -> Truth:
        outcome: Truth = not decisive
        for part in parts:
            truth = part(headers, budget)
            if truth is decisive:
                return decisive
            if truth is None:
                outcome = None
        return outcome

    return evaluate


def _opposite(condition: _Evaluate) -> _Evaluate:
    def evaluate(headers: Headers, budget: Budget) -> Truth:
        truth = condition(headers, budget)
        return None if truth is None else not truth

    return evaluate


def _on_text(name: str, test: Callable[[str], bool]) -> _Evaluate:
    def evaluate(headers: Headers, _budget: Budget) -> Truth:
        value = headers.get(name)
        return None if value is None else test(value)

    return evaluate


def _on_number(name: str, test: Callable[[int], bool]) -> _Evaluate:
    def evaluate(headers: Headers, _budget: Budget) -> Truth:
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


_PLACES_IN_A_STEP = 32


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

    name, steps = node.name, 1 + len(node.pattern) // _PLACES_IN_A_STEP

    def evaluate(headers: Headers, budget: Budget) -> Truth:
        header = headers.get(name)
        if header is None:
            return None
        budget.spend(len(header) * steps)
        reached = 1
        for character in header:
            reached = (reached & (masks.get(character, 0) | anywhere)) << 1 | reached & stay
            if not reached:
                return False
        return reached & final != 0

    return evaluate


K = TypeVar("K", bound=Hashable)


class FilterIndex(Generic[K]):
    """Many filters at once: only those need evaluating whose equality conjunct holds.

    A filter that demands `name = 'text'` is found by a look-up of that header; the rest are
    evaluated one by one.
    """

    def __init__(self, filters: Iterable[tuple[K, Filter]]) -> None:
        self._by_equality: dict[str, dict[str, list[tuple[K, Filter]]]] = {}
        self._others: list[tuple[K, Filter]] = []
        for entry in filters:
            demand = entry[1].demand
            if demand is None:
                self._others.append(entry)
            else:
                name, value = demand
                self._by_equality.setdefault(name, {}).setdefault(value, []).append(entry)

    def candidates(self, headers: Headers) -> Iterator[tuple[K, Filter]]:
        """The filters that may match; no other one does."""
        yield from self._others
        for name, by_value in self._by_equality.items():
            value = headers.get(name)
            if value is not None and value in by_value:
                yield from by_value[value]


def _equality(node: Node) -> tuple[str, str] | None:
    if isinstance(node, Compare) and node.operator == "=" and isinstance(node.value, str):
        return node.name, node.value
    if isinstance(node, And):
        return next(filter(None, map(_equality, node.nodes)), None)
    return None
