"""One-token changes of a source file: comparators, operators, constants, dropped lines.

Tools for Python (cosmic-ray, mutmut) know nothing of Lua, and bring a database and a runner of
their own; finding the places takes two screens, and the same seed then chooses over both languages.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Change:
    """Bytes from `start` to `end` become `new`; they are in the line `text`, at `column`."""

    path: str
    start: int
    end: int
    line: int
    text: str
    column: int
    old: str
    new: str

    def planted(self, source: bytes) -> bytes:
        """Return the source with the change; each line keeps its number."""
        lines = source.count(b"\n", self.start, self.end) * b"\n"
        return source[: self.start] + self.new.encode() + lines + source[self.end :]

    def __str__(self) -> str:
        """Tell where it is and what it does."""
        change = f"{self.old} -> {self.new or 'nothing'}"
        return f"{self.path}:{self.line}:{self.column}: {change} in: {self.text}"


_PYTHON_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
    "and": "or", "or": "and", "+": "-", "-": "+", "*": "//", "//": "*",
}  # fmt: skip
_LUA_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==",
    "and": "or", "or": "and", "+": "-", "-": "+",
}  # fmt: skip
_LUA_TOKEN = re.compile(
    r"""(?P<skip>--[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
    r"|(?P<swap><=|>=|==|~=|<|>|\band\b|\bor\b|(?<=\s)[+-](?=\s))"
    r"|(?P<number>(?<![\w.])\d+(?![\w.]))"
)
_LUA_STATEMENT = re.compile(
    r"^[ \t]*(?P<statement>(?:redis\.call\(|[a-z_.]+ = )[^\n]*)$", re.MULTILINE
)


def find(path: str, source: bytes) -> list[Change]:
    """Find all changes of a file, in the order of the file."""
    found = _in_lua(path, source) if Path(path).suffix == ".lua" else _in_python(path, source)
    return sorted(set(found))


def _change(path: str, source: bytes, start: int, end: int, new: str) -> Change:
    number = source.count(b"\n", 0, start) + 1
    row = source.splitlines()[number - 1].decode()
    text = row.strip()
    column = start - source.rfind(b"\n", 0, start) - 1 - row.index(text)
    return Change(path, start, end, number, text, column, source[start:end].decode(), new)


def _in_lua(path: str, source: bytes) -> Iterator[Change]:
    # As Latin-1 a character is a byte, so that positions are those of the bytes.
    text = source.decode("latin-1")

    def change(start: int, end: int, new: str) -> Change:
        return _change(path, source, start, end, new)

    for token in _LUA_TOKEN.finditer(text):
        if token["swap"]:
            yield change(*token.span("swap"), _LUA_SWAPS[token["swap"]])
        elif token["number"]:
            yield change(*token.span("number"), str(int(token["number"]) + 1))
    for line in _LUA_STATEMENT.finditer(text):
        if line["statement"].count("(") == line["statement"].count(")"):
            yield change(*line.span("statement"), "")


def _in_python(path: str, source: bytes) -> Iterator[Change]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(start: int, end: int, new: str) -> Change:
        return _change(path, source, start, end, new)

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def between(left: ast.expr, right: ast.expr) -> Iterator[Change]:
        after, before = span(left)[1], span(right)[0]
        word = re.search(
            rb"\bnot in\b|\bis not\b|\b(?:is|in|and|or)\b|[<>=!]=|[<>]|//|(?<!\*)\*(?!\*)|[+-]",
            source[after:before],
        )
        if word:
            yield change(after + word.start(), after + word.end(), _PYTHON_SWAPS[word[0].decode()])

    for node in _running(ast.parse(source)):
        match node:
            case ast.Compare():
                for left, right in zip(
                    [node.left, *node.comparators], node.comparators, strict=False
                ):
                    yield from between(left, right)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from between(left, right)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv()):
                yield from between(node.left, node.right)
            case ast.UnaryOp(op=ast.Not()):
                # The word alone: an operand in brackets begins behind its bracket.
                yield change(span(node)[0], span(node)[0] + len("not"), "")
            case ast.Constant(value=bool() as truth):
                yield change(*span(node), str(not truth))
            case ast.Constant(value=int() as number):
                yield change(*span(node), str(number + 1))
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
                yield change(*span(node), "pass")


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs: no annotations, no log lines, nothing that only our mistakes would meet."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns"}:
            continue
        if name == "decorator_list" and isinstance(node, ast.ClassDef):  # options of a dataclass
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_unseen(child):
                yield child
                yield from _running(child)


def _is_unseen(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name.lower().strip("_") in {"log", "logger"}
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.keyword(arg="frozen" | "slots" | "kw_only" | "eq" | "gc" | "strict"):
            return True
    return False
