"""The history of attempts stays bounded, and a back-off gives the delays that were asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zaqar_lite.domain.attempts import (
    MAX_ATTEMPTS,
    MAX_ATTEMPTS_SIZE,
    MAX_CLAIMS,
    MAX_DETAIL,
    MAX_FAILURES,
    Attempt,
    Backoff,
    Ended,
    with_attempt,
)
from zaqar_lite.domain.models import DeadLetter

MINUTE = 60_000


def attempt(number: int, *, detail: str | None = None, reason: str | None = None) -> Attempt:
    return Attempt(number, 10 * number, 10 * number + 5, Ended.FAILED, 0, reason, detail, "client")


def history(*details: str | None) -> tuple[Attempt, ...]:
    """What is kept of attempts with these details, in their order."""
    kept: tuple[Attempt, ...] = ()
    for number, detail in enumerate(details, 1):
        kept = with_attempt(kept, attempt(number, detail=detail))
    return kept


def test_the_size_counts_bytes_of_texts_and_the_rest_as_64() -> None:
    assert Attempt(1, 0, 0, Ended.LAPSED).size == 64
    assert Attempt(1, 0, 0, Ended.FAILED, 0, "é", "🧀", "abc").size == 64 + 2 + 4 + 3


@pytest.mark.parametrize("count", [MAX_ATTEMPTS, MAX_ATTEMPTS + 1, 40])
def test_the_first_and_the_last_are_kept(count: int) -> None:
    kept = [each.number for each in history(*[None] * count)]
    assert kept == [1, *range(count - MAX_ATTEMPTS + 2, count + 1)]
    assert len(kept) == MAX_ATTEMPTS


@given(st.lists(st.integers(0, MAX_DETAIL // 4) | st.none(), max_size=60))
def test_the_history_is_bounded(lengths: list[int | None]) -> None:
    details = [None if length is None else "\u00fc" * length for length in lengths]
    kept = history(*details)
    numbers = [each.number for each in kept]
    assert len(kept) <= MAX_ATTEMPTS
    assert sum(each.size for each in kept) <= MAX_ATTEMPTS_SIZE
    assert numbers[:1] == ([1] if details else [])
    assert numbers[1:] == list(range(len(details) - len(numbers) + 2, len(details) + 1))


@pytest.mark.parametrize(
    ("failures", "minutes"), [(1, 10), (2, 30), (3, 20), (4, 20), (1_000_000, 20)]
)
def test_each_failure_has_its_delay_and_then_the_last_one(failures: int, minutes: int) -> None:
    backoff = Backoff((10 * MINUTE, 30 * MINUTE, 20 * MINUTE))
    for luck in (0.0, 0.5, 0.999):
        assert backoff.delay_ms(failures, luck) == minutes * MINUTE


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=5),
    st.floats(0, 1),
    st.integers(1, 10),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_never_negative_and_never_above_twice_the_one_asked_for(
    delays: list[int], jitter: float, failures: int, luck: float
) -> None:
    delay = Backoff(tuple(delays), jitter).delay_ms(failures, luck)
    assert 0 <= delay <= 2 * max(delays)


@pytest.mark.parametrize(
    ("claims", "failures", "reason"),
    [
        (1, 1, None),
        (4, 2, None),
        (5, 1, MAX_CLAIMS),
        (6, 0, MAX_CLAIMS),
        (1, 3, MAX_FAILURES),
        (1, 4, MAX_FAILURES),
        (5, 3, MAX_FAILURES),
    ],
)
def test_a_message_is_a_dead_letter_at_the_first_limit_it_reaches(
    claims: int, failures: int, reason: str | None
) -> None:
    assert DeadLetter(None, max_claims=5, max_failures=3).spent(claims, failures) == reason
