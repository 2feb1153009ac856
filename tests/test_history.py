"""The history checker finds what it is there to find, and nothing where all is well."""

import pytest

from tests.history import Counts, Delete, Failure, History, Hold, Limits, Post


def history() -> History:
    """A history in which all is well: one message is deleted, one remains, one is unknown."""
    found = History()
    for text, answered in (("deleted", 1.1), ("remains", 1.1), ("unknown", None)):
        found.posts[text] = Post(text, 5, 1.0, answered)
    found.holds.append(Hold("deleted", "first", 7.0, 7.1, 60, given_up=8.0))
    found.deletes["deleted"].append(Delete("deleted", 8.0, 8.1))
    found.end(["remains"])
    return found


def test_nothing_is_found_where_all_is_well() -> None:
    well = history()
    assert well.violations() == []
    # What nobody answered for may have happened, or not.
    well.end(["remains", "unknown"])
    well.rejects.append(Delete("remains", 10.0))
    # A lapsed and a released message may have another holder.
    well.holds.append(Hold("remains", "lapsed", 10.0, 10.1, 60))
    well.holds.append(Hold("remains", "later", 71.0, 71.1, 60, given_up=72.0))
    well.holds.append(Hold("remains", "after-release", 72.1, 72.2, 60))
    assert well.violations() == []


@pytest.mark.parametrize("counts", [Counts(1, 1, "max_failures"), Counts(2, 0, "max_claims")])
def test_a_message_that_reached_a_limit_is_a_dead_letter(counts: Counts) -> None:
    well = limited(Limits(claims=2, failures=1))
    well.failures.append(Failure("remains", 5, 11.0))
    well.end_with_counts([], [("remains", counts)])
    assert well.violations() == []


def test_a_lapse_and_a_claim_without_an_answer_explain_counts() -> None:
    well = limited(Limits())
    well.unanswered.append(80.0)
    well.end_with_counts([("remains", Counts(3, 3))])
    assert well.violations() == []


def limited(limits: Limits) -> History:
    """A history in which one message was handed out, and perhaps once more by a lost claim."""
    found = history()
    found.limits = limits
    found.unanswered.append(9.0)
    found.holds.append(Hold("remains", "first", 10.0, 10.1, 60))
    return found


BROKEN = [
    "lost",
    "invented",
    "undone",
    "two holders",
    "early",
    "hasty",
    "forgotten",
    "overcounted",
    "unburied",
    "exceeded",
]


def test_a_failure_that_nobody_answered_for_may_not_have_happened() -> None:
    well = history()
    well.failures.append(Failure("remains", 5, 10.0))
    well.holds.append(Hold("remains", "next", 11.0, 11.1, 60))
    well.end_with_counts([("remains", Counts(1, 0))])
    assert well.violations() == []


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_broken_is_found(broken: str) -> None:
    found = history()
    match broken:
        case "lost":
            found.end([])
        case "invented":
            found.end(["remains", "remains"])
        case "undone":
            found.holds.append(Hold("deleted", "again", 9.0, 9.1, 60))
        case "two holders":
            found.holds.append(Hold("remains", "first", 10.0, 10.1, 60))
            found.holds.append(Hold("remains", "second", 11.0, 11.1, 60))
        case "hasty":
            found.failures.append(Failure("remains", 5, 10.0, 10.1))
            found.holds.append(Hold("remains", "next", 11.0, 11.1, 60))
        case "forgotten":
            found.failures.append(Failure("remains", 5, 10.0, 10.1))
            found.end_with_counts([("remains", Counts(0, 0))])
        case "overcounted":
            found.end_with_counts([("remains", Counts(1, 0))])
        case "exceeded":
            found.limits = Limits(claims=1)
            found.holds.append(Hold("remains", "first", 10.0, 10.1, 60))
            found.holds.append(Hold("remains", "second", 71.0, 71.1, 60))
        case "unburied":
            found.rejects.append(Delete("remains", 10.0, 10.1))
        case _:
            found.holds.append(Hold("remains", "hasty", 2.0, 5.9, 60))
    assert any(text.startswith(broken) for text in found.violations()), found.violations()
    assert all(text.startswith(broken) for text in found.violations()), found.violations()


def test_a_deleted_message_that_remains_is_found() -> None:
    found = history()
    found.end(["remains", "deleted"])
    assert [text.split(":")[0] for text in found.violations()] == ["undone"]


def test_more_failures_than_were_told_or_lapsed_are_found() -> None:
    found = limited(Limits())
    found.end_with_counts([("remains", Counts(2, 2))])
    found.ended = 11.0
    assert [text.split(":")[0] for text in found.violations()] == ["overcounted"]


def test_a_dead_letter_below_its_limit_is_found() -> None:
    found = limited(Limits(claims=3, failures=3))
    found.end_with_counts([], [("remains", Counts(2, 2, "max_failures"))])
    assert [text.split(":")[0] for text in found.violations()] == ["unburied"]


@pytest.mark.parametrize("handed_out_again", [False, True])
def test_a_message_in_use_after_its_last_failure_is_found(*, handed_out_again: bool) -> None:
    found = limited(Limits(failures=1))
    found.failures.append(Failure("remains", 0, 11.0, 11.1))
    if handed_out_again:
        found.holds.append(Hold("remains", "second", 90.0, 90.1, 60))
    else:
        found.end_with_counts([("remains", Counts(1, 1))])
    assert [text.split(":")[0] for text in found.violations()] == ["exceeded"]
