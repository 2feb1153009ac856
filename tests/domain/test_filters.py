"""The filter language: what it accepts, what it means, and where it says an error is."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import (
    MAX_STEPS_IN_ALL,
    Budget,
    FilterIndex,
    parse_filter,
    parse_rules,
)

HEADERS = {"kind": "order", "size": "12", "empty": "", "word": "twelve", "dry-run": "1"}


@pytest.mark.parametrize(
    ("text", "headers", "matches"),
    [
        ("a = 'it''s'", {"a": "it's"}, True),
        ('"a ""b""" <> \'\'', {'a "b"': "x"}, True),
        ("sys.size >= -3", {"sys.size": "-3"}, True),
        ("a = '1' OR b = '2' AND c = '3'", {"a": "1"}, True),  # AND binds more than OR
        ("a = '1' OR b = '2' AND c = '3'", {"b": "2"}, False),
        ("(a = '1' OR b = '2') AND c = '3'", {"a": "1"}, False),
        ("not (a = '1')", {"a": "2"}, True),
        ("NOT a = '1' AND b = '2'", {"a": "2", "b": "2"}, True),  # and NOT more than AND
        ("NOT a = '1' AND b = '2'", {"a": "2", "b": "1"}, False),
        ("a NOT IN ('x', 'y')", {"a": "z"}, True),
        ("a NOT LIKE '10!%' ESCAPE '!'", {"a": "10%"}, False),
        ("a NOT LIKE '10!%' ESCAPE '!'", {"a": "100"}, True),
        ("a BETWEEN -1 AND 5", {"a": "-1"}, True),
        ("a BETWEEN -1 AND 5", {"a": "6"}, False),
        ("a STARTS WITH 'x'", {"a": "xy"}, True),
        ("a IS NULL", {}, True),
        ("a is not null", {"a": ""}, True),
        ("default = '1'", {"default": "1"}, True),
        ("rules = 'x'", {"rules": "x"}, True),
    ],
)
def test_what_a_text_means(text: str, headers: dict[str, str], matches: bool) -> None:
    assert parse_filter(text)(headers) is matches


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1),
        ("a =", 4),
        ("a = 'open", 5),
        ("a = 'x' b", 9),
        ("a ! 'x'", 3),
        ("(a = 'x'", 9),
        ("a IN ()", 7),
        ("AND = 'x'", 1),
        ("a BETWEEN 1 OR 2", 13),
        ("a LIKE '%' ESCAPE 'ab'", 19),
        ("a = 9223372036854775808", 5),
        ("a STARTS 'x'", 10),
        ("RULES(a = 'x' -> 255)", 18),
        ("RULES(a = 'x')", 14),
        ("RULES(a = 'x' -> 1, DEFAULT 255)", 29),
        ("RULES(a = 'x' -> -1)", 18),
        ("RULES(DEFAULT 1)", 15),
        ("a = '\ud800'", 6),
    ],
)
def test_an_error_names_its_position(text: str, position: int) -> None:
    parse = parse_rules if text.startswith("RULES") else parse_filter
    with pytest.raises(Invalid, match=rf"position {position}\b"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("kind = 'order'", True),
        ("kind <> 'order'", False),
        ("kind > 'alpha' AND kind < 'zeta'", True),
        ("size = 12", True),
        ("size = '12'", True),
        ("size < 2", False),
        ("size < 12", False),
        ("size > 12", False),
        ("size <= 12", True),
        ("size >= 12", True),
        ("size BETWEEN 12 AND 12", True),
        ("word = 12", False),
        ("NOT word = 12", False),
        ("word = 12 OR TRUE", True),
        ("word = 12 AND FALSE", False),
        ("NOT (word = 12 AND FALSE)", True),
        ("missing = 'x'", False),
        ("NOT missing = 'x'", False),
        ("missing IS NULL", True),
        ('EXISTS("dry-run") AND EXISTS(empty)', True),
        ("empty = ''", True),
        ("empty = 0", False),
        ("kind IN ('a', 'order')", True),
        ("kind LIKE 'o%r'", True),
        ("kind LIKE 'o_der' AND kind LIKE '%' AND kind LIKE '_____'", True),
        ("kind LIKE '____'", False),
        ("kind LIKE 'ORDER'", False),
        ("kind ENDS WITH 'der'", True),
        ("kind STARTS WITH 'der'", False),
    ],
)
def test_only_true_matches(text: str, matches: bool) -> None:
    assert parse_filter(text)(HEADERS) is matches


@pytest.mark.parametrize("number", ["+5", "-0", "0005", f"{2**63 - 1}", f"{-(2**63)}"])
def test_a_decimal_of_64_bits_is_a_number(number: str) -> None:
    assert parse_filter(f"a = {int(number)}")({"a": number})


@pytest.mark.parametrize("text", ["", "-", "1.0", "1e3", " 1", f"{2**63}", "٣", "1_0"])
def test_other_text_is_no_number(text: str) -> None:
    assert not parse_filter("a >= 0 OR a < 0")({"a": text})


def test_the_first_true_rule_gives_the_priority() -> None:
    priority = parse_rules("RULES(size > 10 -> 3, kind = 'order' -> HEADER, default 7)")
    assert priority({"size": "11", "kind": "order"}) == 3
    assert priority({"kind": "order", "priority": "42"}) == 42
    assert priority({"kind": "order", "priority": "255"}) == 7
    assert priority({"kind": "order", "priority": "high"}) == 7
    assert priority({"kind": "bill"}) is None
    # A word of the language may be the name of a header; without DEFAULT the default is 100.
    rules = parse_rules("RULES(default = '1' -> HEADER)")
    assert rules({"default": "1"}) == 100


@pytest.mark.parametrize("bound", [0, 254])
def test_a_priority_may_be_either_bound(bound: int) -> None:
    rules = parse_rules(f"RULES(a = '1' -> {bound}, a = '2' -> HEADER, DEFAULT {bound})")
    assert rules({"a": "1"}) == rules({"a": "2"}) == bound
    assert rules({"a": "2", "priority": "-1"}) == rules({"a": "2", "priority": "255"}) == bound
    assert rules({"a": "2", "priority": str(254 - bound)}) == 254 - bound


def test_rules_and_filters_are_told_apart() -> None:
    with pytest.raises(Invalid, match="_priority"):
        parse_filter("RULES(TRUE -> 1)")
    with pytest.raises(Invalid, match="RULES"):
        parse_rules("TRUE")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 17 + "TRUE" + ")" * 17,
        " OR ".join(["TRUE"] * 256),
        " AND ".join(["NOT FALSE"] * 128),
        " AND ".join(["(a = 'x' OR b = 'y')"] * 100),
        "a = '" + "x" * 65_531 + "'",
    ],
)
def test_a_filter_has_bounds(text: str) -> None:
    with pytest.raises(Invalid, match=r"deep|too large|longer"):
        parse_filter(text)


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["TRUE"] * 255),
        "FALSE OR " + " AND ".join(["NOT FALSE"] * 126) + " OR TRUE",
        "TRUE OR a = '" + "x" * 65_522 + "'",
    ],
)
def test_the_largest_filter_is_taken(text: str) -> None:
    assert parse_filter(text)({})


def test_the_deepest_filter_is_taken() -> None:
    parse_filter("(" * 15 + "TRUE" + ")" * 15)
    with pytest.raises(Invalid, match="nested more than 16 deep"):
        parse_filter("(" * 16 + "TRUE" + ")" * 16)


def test_a_pattern_has_a_greatest_length() -> None:
    parse_filter("a LIKE '" + "%" * 256 + "'")
    with pytest.raises(Invalid, match=r"position 8: a LIKE pattern has at most 256"):
        parse_filter("a LIKE '" + "%" * 257 + "'")


def test_one_evaluation_has_a_budget() -> None:
    many = " OR ".join(f"a LIKE '%{number}'" for number in range(20))
    matches = parse_filter(many)
    assert not matches({"a": "x" * 4_000})
    with pytest.raises(Invalid, match="100,000 steps for one message"):
        matches({"a": "x" * 6_000})
    rules = parse_rules(f"RULES({many} -> 1)")
    with pytest.raises(Invalid, match="100,000 steps for one message"):
        rules({"a": "x" * 6_000})


def test_all_evaluations_of_a_post_have_a_budget_together() -> None:
    matches, budget = parse_filter("a LIKE '%b'"), Budget()
    for _ in range(MAX_STEPS_IN_ALL // 50_001):
        assert not matches({"a": "x" * 50_000}, budget)
    with pytest.raises(Invalid, match="5,000,000 for one post"):
        matches({"a": "x" * 50_000}, budget)


def test_a_pattern_costs_no_more_than_its_length_times_the_header() -> None:
    matches = parse_filter("a LIKE '" + "%a_" * 85 + "b'")
    started = time.process_time()
    assert not matches({"a": "a" * 8_000})
    assert time.process_time() - started < 0.5


def test_an_index_finds_what_each_filter_alone_would() -> None:
    filters = {
        "orders": parse_filter("kind = 'order'"),
        "large": parse_filter("size > 10 AND kind = 'order'"),
        "bills": parse_filter("kind = 'bill'"),
        "any": parse_filter("TRUE"),
        "either": parse_filter("kind = 'order' OR size = 1"),
    }
    index = FilterIndex(filters.items())
    orders = ({"kind": "order"}, {"kind": "order", "size": "11"})
    for headers in (*orders, {"kind": "neither", "size": "1"}, {}):
        alone = {name for name, matches in filters.items() if matches(headers)}
        assert {name for name, matches in index.candidates(headers) if matches(headers)} == alone


letters = st.text("ab%_", max_size=12)


@settings(deadline=None)
@given(letters, st.text("ab", max_size=12))
def test_like_means_what_the_regular_expression_means(pattern: str, text: str) -> None:
    expression = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern)
    matches = parse_filter(f"a LIKE '{pattern}'")({"a": text})
    assert matches is (re.fullmatch(expression, text, re.DOTALL) is not None)


WORDS = "a kind = <> < >= 'x' '12' 12 -3 AND OR NOT ( ) IN , LIKE IS NULL TRUE EXISTS"


@settings(deadline=None)
@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS.split()), max_size=7).map(" ".join))
def test_any_text_is_a_filter_that_its_index_finds_or_invalid(text: str) -> None:
    try:
        matches = parse_filter(text)
    except Invalid:
        return
    index = FilterIndex([("it", matches)])
    for headers in ({}, {"a": "x"}, {"a": "12", "kind": ""}):
        assert not matches(headers) or ("it", matches) in index.candidates(headers)
