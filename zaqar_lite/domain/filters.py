"""The filter and priority language: text to a function over headers.

    expr  := or ; or := and (OR and)* ; and := not (AND not)* ; not := [NOT] prim
    prim  := '(' expr ')' | TRUE | FALSE | EXISTS '(' name ')'
           | name = <> < <= > >= ('text' | number) | name [NOT] IN ('text', ...)
           | name [NOT] LIKE 'pattern' [ESCAPE 'c'] | name [NOT] BETWEEN number AND number
           | name STARTS WITH 'text' | name ENDS WITH 'text' | name IS [NOT] NULL
    rules := RULES '(' expr '->' (0..254 | HEADER), ... [, DEFAULT n] ')'
    name  := a bare word or "quoted"

Headers are text. Text compares by code point (the order of UTF-8 bytes). Where the other side is a
number, the header is read as a signed 64-bit decimal. A missing header, or one that is no number,
gives UNKNOWN; NOT UNKNOWN is UNKNOWN; only TRUE matches. In a LIKE pattern % is any text and _ any
one character. There is no arithmetic and no regular expression, so the cost of a match is at most
the size of the filter times the size of the headers; a `Budget` bounds that too.

RULES give a priority by the first rule that is true: its number, or for HEADER the header
`priority` where that is 0 to 254, else the default. Lower is served first.

A filter is read by recursive descent, and made of the functions of its conditions: closures over
headers, by three-valued logic, within a budget.
"""

import operator
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import INT64_MAX, INT64_MIN
from zaqar_lite.domain.models import DEFAULT_PRIORITY
from zaqar_lite.domain.patterns import Pattern, Wildcard

MAX_TEXT = 65_536
"""Bytes of a filter's text."""
MAX_DEPTH = 16
MAX_CONDITIONS = 256
MAX_PATTERN = 256
"""Characters of a LIKE pattern."""
MAX_PRIORITY = 254
PRIORITY_FROM_HEADER = 255
PRIORITY_HEADER = "priority"
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


Headers: TypeAlias = Mapping[str, str]
Truth: TypeAlias = bool | None
"""None is UNKNOWN."""
Evaluate: TypeAlias = Callable[[Headers, Budget], Truth]
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Filter(NamedTuple):
    """A filter as a function: tells whether headers match it.

    It has so many `conditions`. `demand` is a header and its text without which nothing matches,
    or None.
    """

    evaluate: Evaluate
    conditions: int = 1
    demand: tuple[str, str] | None = None

    def __call__(self, headers: Headers, budget: Budget | None = None) -> bool:
        """Evaluate within a post's budget, or within one of its own.

        Raises:
            Invalid: the budget is used up.
        """
        budget = budget or Budget()
        budget.begin(self.conditions)
        return self.evaluate(headers, budget) is True


class Rules(NamedTuple):
    """Conditions and the priorities that they give: by the first that is true.

    PRIORITY_FROM_HEADER takes it from the header, where that has one, and else is `default`.
    """

    rules: Sequence[tuple[Filter, int]]
    default: int
    conditions: int

    def __call__(self, headers: Headers, budget: Budget | None = None) -> int | None:
        """Give the priority of headers, None where no rule matches; as `Filter`."""
        budget = budget or Budget()
        budget.begin(self.conditions)
        for condition, priority in self.rules:
            if condition.evaluate(headers, budget) is True:
                if priority != PRIORITY_FROM_HEADER:
                    return priority
                number = _number(headers.get(PRIORITY_HEADER))
                return (
                    number if number is not None and 0 <= number <= MAX_PRIORITY else self.default
                )
        return None


def _joined(parts: Sequence[Filter], *, decisive: bool) -> Filter:
    """Join conditions by AND, where one that is false decides, or by OR, where one that is true."""
    if len(parts) == 1:
        return parts[0]
    evaluations = [part.evaluate for part in parts]

    def evaluate(headers: Headers, budget: Budget) -> Truth:
        outcome: Truth = not decisive
        for one in evaluations:
            truth = one(headers, budget)
            if truth is decisive:
                return decisive
            if truth is None:
                outcome = None
        return outcome

    demands = [] if decisive else [part.demand for part in parts if part.demand is not None]
    return Filter(
        evaluate,
        1 + sum(part.conditions for part in parts),
        demands[0] if demands else None,
    )


def _opposite(part: Filter) -> Filter:
    def evaluate(headers: Headers, budget: Budget) -> Truth:
        truth = part.evaluate(headers, budget)
        return None if truth is None else not truth

    return Filter(evaluate, 1 + part.conditions)


def _exists(name: str) -> Filter:
    return Filter(lambda headers, _budget: name in headers)


def _header(
    name: str,
    test: Callable[[Any], bool],
    *,
    is_number: bool = False,
    demand: tuple[str, str] | None = None,
) -> Filter:
    """A header passes a test, of its text or of the number that it is."""

    def evaluate(headers: Headers, _budget: Budget) -> Truth:
        text = headers.get(name)
        value = _number(text) if is_number else text
        return None if value is None else test(value)

    return Filter(evaluate, demand=demand)


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
_WILDCARDS = {"%": Wildcard.MANY, "_": Wildcard.ONE}


def _like(name: str, text: str, escape: str) -> Filter:
    """The header has the form of a pattern; `escape` is one character, or empty."""
    pattern = Pattern(_parts(text, escape))
    steps = 1 + len(text) // _PLACES_IN_A_STEP

    def evaluate(headers: Headers, budget: Budget) -> Truth:
        header = headers.get(name)
        if header is None:
            return None
        budget.spend(len(header) * steps)
        return pattern.matches(header)

    return Filter(evaluate)


def _parts(text: str, escape: str) -> Iterator[str | Wildcard]:
    characters = iter(text)
    for character in characters:
        if escape and character == escape:
            yield next(characters, escape)
        else:
            yield _WILDCARDS.get(character, character)


K = TypeVar("K", bound=Hashable)
Found = TypeVar("Found", Filter, Rules)


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
            if name in headers:
                yield from by_value.get(headers[name], ())


_KEYWORDS = frozenset({
    "AND", "OR", "NOT", "TRUE", "FALSE", "EXISTS", "IN", "LIKE", "ESCAPE", "BETWEEN", "STARTS",
    "ENDS", "WITH", "IS", "NULL",
})  # fmt: skip
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")*")|(?P<number>[+-]?\d+)"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<symbol><>|<=|>=|->|[=<>(),])|(?P<unknown>\S)""",
    re.ASCII,
)


class _Token(NamedTuple):
    kind: str
    value: str
    position: int


def parse_filter(text: str) -> Filter:
    """Read a filter that is no RULES.

    Raises:
        Invalid: names the position (from 1), what was expected and what was found.
    """
    parser = _Parser(text)
    if parser.begins_rules:
        raise Invalid("The filter is wrong at position 1: RULES belong into _priority.")
    return parser.whole(parser.condition())


def parse_rules(text: str) -> Rules:
    """Read RULES.

    Raises:
        Invalid: as `parse_filter`.
    """
    parser = _Parser(text)
    if not parser.begins_rules:
        raise Invalid("The rules are wrong at position 1: expected RULES(condition -> number).")
    return parser.whole(parser.rules())


class _Parser:
    """Recursive descent over the tokens; its depth is bounded while it reads."""

    def __init__(self, text: str) -> None:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as exc:
            raise Invalid(
                f"The filter is wrong at position {exc.start + 1}: no valid Unicode."
            ) from exc
        if size > MAX_TEXT:
            raise Invalid(f"The filter is longer than {MAX_TEXT} bytes.")
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    @property
    def begins_rules(self) -> bool:
        return self._is_at("RULES") and self._is_at("(", 1)

    def whole(self, found: Found) -> Found:
        """What was read, if that was all, and is not too large."""
        if self._tokens[self._next].kind != "end":
            self._fail("expected the end")
        if found.conditions > MAX_CONDITIONS:
            raise Invalid(f"The filter is too large: at most {MAX_CONDITIONS} conditions.")
        return found

    def rules(self) -> Rules:
        self._next = 2
        rules: list[tuple[Filter, int]] = []
        default = DEFAULT_PRIORITY
        while True:
            if rules and self._is_at("DEFAULT") and self._tokens[self._next + 1].kind == "number":
                self._next += 1
                default = self._integer(0, MAX_PRIORITY)
                break
            condition = self.condition()
            self._expect("->")
            from_header = self._take("HEADER")
            priority = PRIORITY_FROM_HEADER if from_header else self._integer(0, MAX_PRIORITY)
            rules.append((condition, priority))
            if not self._take(","):
                break
        self._expect(")")
        return Rules(rules, default, sum(condition.conditions for condition, _ in rules))

    def condition(self) -> Filter:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep")
        found = self._row("OR", self._and, decisive=True)
        self._depth -= 1
        return found

    def _and(self) -> Filter:
        return self._row("AND", self._not, decisive=False)

    def _row(self, word: str, read: Callable[[], Filter], *, decisive: bool) -> Filter:
        parts = [read()]
        while self._take(word):
            parts.append(read())
        return _joined(parts, decisive=decisive)

    def _not(self) -> Filter:
        return _opposite(self._primary()) if self._take("NOT") else self._primary()

    def _primary(self) -> Filter:
        if self._take("("):
            inner = self.condition()
            self._expect(")")
            return inner
        if self._take("TRUE"):
            return Filter(lambda _headers, _budget: True)
        if self._take("FALSE"):
            return Filter(lambda _headers, _budget: False)
        if self._take("EXISTS"):
            self._expect("(")
            name = self._name()
            self._expect(")")
            return _exists(name)
        return self._comparison(self._name())

    def _comparison(self, name: str) -> Filter:
        sign = self._tokens[self._next].value
        if sign in _TESTS:
            self._next += 1
            test = _TESTS[sign]
            if self._tokens[self._next].kind == "number":
                number = self._integer(INT64_MIN, INT64_MAX)
                return _header(name, lambda header: test(header, number), is_number=True)
            text = self._text()
            demand = (name, text) if sign == "=" else None
            return _header(name, lambda header: test(header, text), demand=demand)
        for word in ("STARTS", "ENDS"):
            if self._take(word):
                self._expect("WITH")
                return _header(name, methodcaller(f"{word.lower()}with", self._text()))
        if self._take("IS"):
            negated = self._take("NOT")
            self._expect("NULL")
            return _exists(name) if negated else _opposite(_exists(name))
        if self._take("NOT"):
            return _opposite(self._negatable(name))
        return self._negatable(name)

    def _negatable(self, name: str) -> Filter:
        if self._take("IN"):
            self._expect("(")
            values = {self._text()}
            while self._take(","):
                values.add(self._text())
            self._expect(")")
            return _header(name, values.__contains__)
        if self._take("LIKE"):
            why = f"a LIKE pattern has at most {MAX_PATTERN} characters"
            pattern, escape = self._text(range(MAX_PATTERN + 1), why), ""
            if self._take("ESCAPE"):
                escape = self._text(range(1, 2), "ESCAPE takes one character")
            return _like(name, pattern, escape)
        if self._take("BETWEEN"):
            low = self._integer(INT64_MIN, INT64_MAX)
            self._expect("AND")
            high = self._integer(INT64_MIN, INT64_MAX)
            return _header(name, lambda header: low <= header <= high, is_number=True)
        return self._fail("expected a comparison after the name")

    def _name(self) -> str:
        token = self._tokens[self._next]
        if token.kind == "quoted":
            self._next += 1
            return token.value[1:-1].replace('""', '"')
        if token.kind != "word" or token.value.upper() in _KEYWORDS:
            self._fail("expected the name of a header")
        self._next += 1
        return token.value

    def _text(self, lengths: range | None = None, why: str = "") -> str:
        token = self._tokens[self._next]
        if token.kind != "text":
            self._fail("expected 'text'")
        text = token.value[1:-1].replace("''", "'")
        if lengths is not None and len(text) not in lengths:
            self._fail(why)
        self._next += 1
        return text

    def _integer(self, least: int, most: int) -> int:
        token = self._tokens[self._next]
        if (
            token.kind != "number"
            or len(token.value) > 20
            or not (least <= int(token.value) <= most)
        ):
            self._fail(f"expected a number from {least} to {most}")
        self._next += 1
        return int(token.value)

    def _is_at(self, value: str, ahead: int = 0) -> bool:
        """Whether a word, in any case, or a symbol comes next."""
        token = self._tokens[self._next + ahead]
        return token.kind in ("word", "symbol") and token.value.upper() == value

    def _take(self, value: str) -> bool:
        found = self._is_at(value)
        self._next += found
        return found

    def _expect(self, value: str) -> None:
        if not self._take(value):
            self._fail(f"expected {value!r}")

    def _fail(self, why: str) -> NoReturn:
        token = self._tokens[self._next]
        found = "the end" if token.kind == "end" else repr(token.value[:40])
        raise Invalid(f"The filter is wrong at position {token.position}: {why}, found {found}.")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    for match in _TOKEN.finditer(text):
        kind, value, position = match.lastgroup or "", match[0], match.start() + 1
        if kind == "unknown":
            raise Invalid(
                f"The filter is wrong at position {position}: nothing can begin with {value!r} "
                "here."
            )
        tokens.append(_Token(kind, value, position))
    tokens.extend([_Token("end", "", len(text) + 1)] * 2)
    return tokens
