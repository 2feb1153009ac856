"""Access rules of application credentials: which path a pattern matches, and that none is slow."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zaqar_lite.domain.identity import AccessRule


@pytest.mark.parametrize(
    ("pattern", "path", "admitted"),
    [
        ("/v2/queues", "/v2/queues", True),
        ("/v2/queues", "/v2/queues/", False),
        ("/v2/queues/*", "/v2/queues/orders", True),
        ("/v2/queues/{queue_name}", "/v2/queues/orders", True),
        ("/v2/queues/*", "/v2/queues/", False),
        ("/v2/queues/*", "/v2/queues/orders/messages", False),
        ("/v2/queues/*/messages", "/v2/queues/orders/messages", True),
        ("/v2/queues/orders-*", "/v2/queues/orders-eu", True),
        ("/v2/**", "/v2/queues/orders/messages", True),
        ("/v2/**", "/v2/", True),
        ("/v2/**", "/v2", False),
        ("/v2/**/messages", "/v2/queues/orders/messages", True),
        ("**", "", True),
        ("/v2/queue.", "/v2/queues", False),
        ("/v2/(a|b)", "/v2/a", False),
        ("", "/", False),
        ("", "", True),
        ("**", "a" * 2_048, True),
    ],
)
def test_a_pattern_matches_a_whole_path(pattern: str, path: str, admitted: bool) -> None:
    assert AccessRule("GET", pattern).admits("GET", path) == admitted
    assert not AccessRule("GET", pattern).admits("POST", path)


@given(st.text("ab/*{}", max_size=8), st.text("ab/", max_size=8))
def test_it_matches_what_a_regular_expression_would(pattern: str, path: str) -> None:
    parts = re.split(r"(\*\*+|\*|{[^}]*})", pattern)
    expression = "".join(
        ".*"
        if part.startswith("**")
        else "[^/]+"
        if part[:1] == "*"
        else "[^/]+"
        if re.fullmatch(r"{[^}]*}", part)
        else re.escape(part)
        for part in parts
    )
    expected = re.fullmatch(expression, path) is not None
    assert AccessRule("GET", pattern).admits("GET", path) == expected


def test_no_pattern_takes_long() -> None:
    begun = time.process_time()
    assert not AccessRule("GET", "**a" * 60 + "b").admits("GET", "a" * 2_048)
    assert not AccessRule("GET", "**").admits("GET", "a" * 100_000)
    assert time.process_time() - begun < 1
