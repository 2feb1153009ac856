"""Grants: what they read, whom they let do what, and that a denial outweighs them all."""

import time

import pytest

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.identity import MAX_GRANTS, Grant, Verb, may, parse_grant, parse_grants


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    grant = Grant(Verb.SEND, "*a" * 31 + "*b", allows=True)
    begun = time.perf_counter()
    for _ in range(1_000):
        assert not grant.covers(Verb.SEND, "a" * 64)
    assert time.perf_counter() - begun < 10  # an exponential one would take years


@pytest.mark.parametrize(
    "text",
    ["", "send", "send:", "post:orders", "send:a b", "send:[ab]", "!!send:a", "SEND:a", ":a"],
)
def test_what_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is no grant"):
        parse_grant(text)


@pytest.mark.parametrize("pattern", ["a" * 65, "(a|b)", "a\n", "b:c", "ä"])
def test_a_pattern_is_of_what_queue_names_are_made_of(pattern: str) -> None:
    with pytest.raises(Invalid, match="is no grant"):
        parse_grant(f"send:{pattern}")


def test_grants_must_allow_something_and_are_bounded() -> None:
    with pytest.raises(Invalid, match="No grant allows anything"):
        parse_grants(["!send:a"])
    with pytest.raises(Invalid, match="65 grants"):
        parse_grants(["send:a"] * (MAX_GRANTS + 1))


def test_a_grant_is_for_its_verb_and_its_queues() -> None:
    grants = parse_grants(["send:orders*", "read:orders"])
    assert may(grants, Verb.SEND, "orders-later")
    assert may(grants, Verb.READ, "orders")
    assert not may(grants, Verb.READ, "orders-later")
    assert not may(grants, Verb.RECEIVE, "orders")
    assert not may(grants, Verb.SEND, "my-orders")
    assert not may((), Verb.SEND, "orders")


def test_a_denial_outweighs_every_grant_in_any_order() -> None:
    for texts in (["*:*", "!send:a*"], ["!send:a*", "*:*", "send:ab"]):
        grants = parse_grants(texts)
        assert not may(grants, Verb.SEND, "ab")
        assert may(grants, Verb.READ, "ab")
        assert may(grants, Verb.SEND, "b")
    assert not may(parse_grants(["*:*", "!*:a"]), Verb.ADMIN, "a")


def test_what_concerns_all_queues_needs_them_all() -> None:
    assert may(parse_grants(["read:*"]), Verb.READ, None)
    assert may(parse_grants(["*:*", "!send:a"]), Verb.READ, None)
    assert not may(parse_grants(["read:a*"]), Verb.READ, None)
    assert not may(parse_grants(["read:*", "!read:secret"]), Verb.READ, None)
    assert not may(parse_grants(["read:*", "!*:secret"]), Verb.READ, None)
