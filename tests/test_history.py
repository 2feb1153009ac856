"""The history checker finds what it is there to find, and nothing where all is well."""

import pytest

from tests.history import Delete, Failure, History, Hold, Post


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
    assert history().violations() == []


def test_an_unknown_post_may_be_there() -> None:
    well = history()
    well.end(["remains", "unknown"])
    assert well.violations() == []


def test_a_lapsed_or_released_message_may_have_another_holder() -> None:
    well = history()
    well.holds.append(Hold("remains", "lapsed", 10.0, 10.1, 60))
    well.holds.append(Hold("remains", "later", 71.0, 71.1, 60, given_up=72.0))
    well.holds.append(Hold("remains", "after-release", 72.1, 72.2, 60))
    assert well.violations() == []


def test_a_reject_that_nobody_answered_for_may_not_have_happened() -> None:
    well = history()
    well.rejects.append(Delete("remains", 10.0))
    assert well.violations() == []
    well.end([], dead=["remains"])
    assert well.violations() == []


BROKEN = ["lost", "invented", "undone", "two holders", "early", "hasty", "forgotten", "unburied"]


def test_a_failure_that_nobody_answered_for_may_not_have_happened() -> None:
    well = history()
    well.failures.append(Failure("remains", 5, 10.0))
    well.holds.append(Hold("remains", "next", 11.0, 11.1, 60))
    well.end(["remains"], {"remains": 0})
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
            found.end(["remains"], {"remains": 0})
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
