"""The rule of edits, at its bounds and one millisecond beyond."""

import pytest

from zaqar_lite.domain.errors import Conflict, DueChanged, Invalid
from zaqar_lite.domain.models import Edit
from zaqar_lite.domain.refusals import Deadlines, edited

NOW = 1_000_000


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ((NOW + 1, NOW + 9), Edit("m", b"1"), (NOW + 1, NOW + 9)),
        ((NOW + 5, NOW + 9), Edit("m", ttl_ms=5), (NOW + 5, NOW + 5)),
        ((NOW + 5, NOW + 9), Edit("m", delay_ms=9), (NOW + 9, NOW + 9)),
        ((NOW + 5, NOW + 9), Edit("m", delay_ms=0), (NOW, NOW + 9)),
        ((NOW + 5, NOW + 9), Edit("m", ttl_ms=20, delay_ms=20), (NOW + 20, NOW + 20)),
        ((NOW + 500, NOW + 900), Edit("m", if_due=NOW + 999), (NOW + 500, NOW + 900)),
    ],
)
def test_an_edit_sets_the_deadlines_that_it_names(
    before: tuple[int, int], edit: Edit, after: tuple[int, int]
) -> None:
    assert edited(edit, Deadlines(*before), NOW) == after


def test_a_message_that_is_due_is_not_edited() -> None:
    for due in (NOW, 0):
        with pytest.raises(Conflict, match="m is not delayed"):
            edited(Edit("m", delay_ms=5), Deadlines(due, NOW + 9), NOW)


def test_a_message_that_is_due_in_another_second_is_not_edited() -> None:
    for seen in (NOW - 1, NOW + 1_000):
        with pytest.raises(DueChanged):
            edited(Edit("m", if_due=seen), Deadlines(NOW + 500, NOW + 900), NOW)


@pytest.mark.parametrize("edit", [Edit("m", ttl_ms=4), Edit("m", delay_ms=10)])
def test_a_message_may_not_expire_before_its_delay(edit: Edit) -> None:
    with pytest.raises(Invalid, match="would expire 1 ms before"):
        edited(edit, Deadlines(NOW + 5, NOW + 9), NOW)
