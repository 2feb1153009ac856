"""Text to tree: recursive descent, with the position of what is wrong."""

import re
from typing import NamedTuple, NoReturn

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters.tree import (
    MAX_DEPTH,
    MAX_NODES,
    MAX_PATTERN,
    MAX_PRIORITY,
    MAX_TEXT,
    OPERATORS,
    PRIORITY_FROM_HEADER,
    And,
    Between,
    Compare,
    Constant,
    EndsWith,
    Exists,
    Expression,
    In,
    Like,
    Node,
    Not,
    Or,
    Rule,
    Rules,
    StartsWith,
    check_size,
)
from zaqar_lite.domain.limits import INT64_MAX, INT64_MIN
from zaqar_lite.domain.models import DEFAULT_PRIORITY

_KEYWORDS = frozenset({
    "AND", "OR", "NOT", "TRUE", "FALSE", "EXISTS", "IN", "LIKE", "ESCAPE", "BETWEEN", "STARTS",
    "ENDS", "WITH", "IS", "NULL",
})  # fmt: skip
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")*")|(?P<number>[+-]?\d+)"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<symbol><>|<=|>=|->|[=<>(),]))""",
    re.ASCII,
)
_SPACE = re.compile(r"\s*", re.ASCII)


class _Token(NamedTuple):
    kind: str
    value: str
    position: int


def parse(text: str) -> Expression:
    """Read a filter, or RULES.

    Raises:
        Invalid: names the position (from 1), what was expected and what was found.
    """
    return _Parser(text).expression()


def parse_filter(text: str) -> Node:
    """Read a filter that is no RULES.

    Raises:
        Invalid: as `parse`.
    """
    tree = parse(text)
    if isinstance(tree, Rules):
        raise Invalid("The filter is wrong at position 1: RULES belong into _priority.")
    return tree


def parse_rules(text: str) -> Rules:
    """Read RULES.

    Raises:
        Invalid: as `parse`.
    """
    tree = parse(text)
    if not isinstance(tree, Rules):
        raise Invalid("The rules are wrong at position 1: expected RULES(condition -> number).")
    return tree


class _Parser:
    """Recursive descent over the tokens; its depth is bounded while it reads."""

    def __init__(self, text: str) -> None:
        if len(text.encode(errors="surrogatepass")) > MAX_TEXT:
            raise Invalid(f"The filter is longer than {MAX_TEXT} bytes.")
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise Invalid(
                f"The filter is wrong at position {exc.start + 1}: no valid Unicode."
            ) from exc
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def expression(self) -> Expression:
        tree: Expression = self._rules() if self._is_rules() else self._or()
        self._expect("end", what="the end")
        check_size(tree)
        return tree

    def _is_rules(self) -> bool:
        first = self._tokens[0]
        return (
            first.kind == "word"
            and first.value.upper() == "RULES"
            and self._tokens[1].value == "("
            and self._tokens[1].kind == "symbol"
        )

    def _rules(self) -> Rules:
        self._next = 2
        rules: list[Rule] = []
        default = DEFAULT_PRIORITY
        while True:
            if rules and self._at_default():
                self._next += 1
                default = self._integer(0, MAX_PRIORITY)
                break
            condition = self._or()
            self._expect("symbol", "->")
            if self._take_word("HEADER"):
                rules.append(Rule(condition, PRIORITY_FROM_HEADER))
            else:
                rules.append(Rule(condition, self._integer(0, MAX_PRIORITY)))
            if not self._take("symbol", ","):
                break
        self._expect("symbol", ")")
        return Rules(tuple(rules), default)

    def _at_default(self) -> bool:
        token, after = self._tokens[self._next], self._tokens[self._next + 1]
        return token.kind == "word" and token.value.upper() == "DEFAULT" and after.kind == "number"

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep")
        nodes = [self._and()]
        while self._take_word("OR"):
            nodes.append(self._and())
        self._depth -= 1
        return nodes[0] if len(nodes) == 1 else Or(self._bounded(nodes))

    def _and(self) -> Node:
        nodes = [self._not()]
        while self._take_word("AND"):
            nodes.append(self._not())
        return nodes[0] if len(nodes) == 1 else And(self._bounded(nodes))

    def _bounded(self, nodes: list[Node]) -> tuple[Node, ...]:
        if len(nodes) >= MAX_NODES:
            self._fail(f"more than {MAX_NODES - 1} conditions in a row")
        return tuple(nodes)

    def _not(self) -> Node:
        return Not(self._primary()) if self._take_word("NOT") else self._primary()

    def _primary(self) -> Node:
        if self._take("symbol", "("):
            inner = self._or()
            self._expect("symbol", ")")
            return inner
        for word, value in (("TRUE", True), ("FALSE", False)):
            if self._take_word(word):
                return Constant(value)
        if self._take_word("EXISTS"):
            self._expect("symbol", "(")
            name = self._name()
            self._expect("symbol", ")")
            return Exists(name)
        return self._condition(self._name())

    def _condition(self, name: str) -> Node:
        token = self._tokens[self._next]
        if token.kind == "symbol" and token.value in OPERATORS:
            self._next += 1
            return Compare(token.value, name, self._value())
        if self._take_word("STARTS"):
            self._expect_word("WITH")
            return StartsWith(name, self._text())
        if self._take_word("ENDS"):
            self._expect_word("WITH")
            return EndsWith(name, self._text())
        if self._take_word("IS"):
            negated = self._take_word("NOT")
            self._expect_word("NULL")
            return Exists(name) if negated else Not(Exists(name))
        if self._take_word("NOT"):
            return Not(self._negatable(name))
        return self._negatable(name)

    def _negatable(self, name: str) -> Node:
        if self._take_word("IN"):
            self._expect("symbol", "(")
            values = [self._text()]
            while self._take("symbol", ","):
                values.append(self._text())
            self._expect("symbol", ")")
            return In(name, tuple(values))
        if self._take_word("LIKE"):
            pattern = self._text()
            if len(pattern) > MAX_PATTERN:
                self._next -= 1
                self._fail(f"a LIKE pattern has at most {MAX_PATTERN} characters")
            escape = self._escape() if self._take_word("ESCAPE") else ""
            return Like(name, pattern, escape)
        if self._take_word("BETWEEN"):
            low = self._integer(INT64_MIN, INT64_MAX)
            self._expect_word("AND")
            return Between(name, low, self._integer(INT64_MIN, INT64_MAX))
        return self._fail("expected a comparison after the name")

    def _value(self) -> str | int:
        if self._tokens[self._next].kind == "number":
            return self._integer(INT64_MIN, INT64_MAX)
        return self._text()

    def _escape(self) -> str:
        text = self._text()
        if len(text) != 1:
            self._next -= 1
            self._fail("ESCAPE takes one character")
        return text

    def _name(self) -> str:
        token = self._tokens[self._next]
        if token.kind == "quoted":
            self._next += 1
            return token.value[1:-1].replace('""', '"')
        if token.kind != "word" or token.value.upper() in _KEYWORDS:
            self._fail("expected the name of a header")
        self._next += 1
        return token.value

    def _text(self) -> str:
        token = self._tokens[self._next]
        if token.kind != "text":
            self._fail("expected 'text'")
        self._next += 1
        return token.value[1:-1].replace("''", "'")

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

    def _take(self, kind: str, value: str) -> bool:
        token = self._tokens[self._next]
        found = token.kind == kind and token.value == value
        self._next += found
        return found

    def _take_word(self, word: str) -> bool:
        token = self._tokens[self._next]
        found = token.kind == "word" and token.value.upper() == word
        self._next += found
        return found

    def _expect(self, kind: str, value: str | None = None, *, what: str | None = None) -> None:
        token = self._tokens[self._next]
        if token.kind != kind or (value is not None and token.value != value):
            self._fail(f"expected {what or repr(value)}")
        self._next += token.kind != "end"

    def _expect_word(self, word: str) -> None:
        if not self._take_word(word):
            self._fail(f"expected {word}")

    def _fail(self, why: str) -> NoReturn:
        token = self._tokens[self._next]
        found = "the end" if token.kind == "end" else repr(token.value[:40])
        raise Invalid(f"The filter is wrong at position {token.position}: {why}, found {found}.")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    offset = _SPACE.match(text, 0).end()  # type: ignore[union-attr]  # matches empty text too
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise Invalid(
                f"The filter is wrong at position {offset + 1}: nothing can begin with "
                f"{text[offset]!r} here."
            )
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        offset = _SPACE.match(text, match.end()).end()  # type: ignore[union-attr]  # as above
    tokens.extend([_Token("end", "", len(text) + 1)] * 2)
    return tokens
