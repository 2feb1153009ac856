"""The history checker finds what it is there to find, and nothing where all is well."""

from collections.abc import Callable

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


def limited(limits: Limits) -> History:
    """A history in which one message was handed out, and perhaps once more by a lost claim."""
    found = history()
    found.limits = limits
    found.unanswered.append(9.0)
    found.holds.append(Hold("remains", "first", 10.0, 10.1, 60))
    return found


def held(found: History, *spans: tuple[float, float]) -> History:
    """Have the message that remains handed out at these times, each for a minute."""
    found.holds += [Hold("remains", f"at-{begun}", begun, ended, 60) for begun, ended in spans]
    return found


def failed(found: History, delay: int = 5) -> History:
    found.failures.append(Failure("remains", delay, 10.0, 10.1))
    return found


def counted(found: History, claims: int, failures: int, ended: float | None = None) -> History:
    found.end_with_counts([("remains", Counts(claims, failures))])
    found.ended = found.ended if ended is None else ended
    return found


BROKEN: list[tuple[str, Callable[[History], object]]] = [
    ("lost", lambda found: found.end([])),
    ("invented", lambda found: found.end(["remains", "remains"])),
    ("undone", lambda found: found.end(["remains", "deleted"])),
    ("undone", lambda found: found.holds.append(Hold("deleted", "again", 9.0, 9.1, 60))),
    ("early", lambda found: held(found, (2.0, 5.9))),
    ("two holders", lambda found: held(found, (10.0, 10.1), (11.0, 11.1))),
    ("hasty", lambda found: held(failed(found), (11.0, 11.1))),
    ("forgotten", lambda found: counted(failed(found), 0, 0)),
    ("overcounted", lambda found: counted(found, 1, 0)),
    ("unburied", lambda found: found.rejects.append(Delete("remains", 10.0, 10.1))),
]
LIMITED: list[tuple[str, Limits, Callable[[History], object]]] = [
    ("overcounted", Limits(), lambda found: counted(found, 2, 2, 11.0)),
    ("exceeded", Limits(claims=1), lambda found: held(found, (71.0, 71.1))),
    ("exceeded", Limits(failures=1), lambda found: counted(failed(found, 0), 1, 1)),
    ("exceeded", Limits(failures=1), lambda found: held(failed(found, 0), (90.0, 90.1))),
    (
        "unburied",
        Limits(claims=3, failures=3),
        lambda found: found.end_with_counts([], [("remains", Counts(2, 2, "max_failures"))]),
    ),
]


@pytest.mark.parametrize(
    ("told", "limits", "break_it"), [*((told, None, how) for told, how in BROKEN), *LIMITED]
)
def test_what_is_broken_is_found(
    told: str, limits: Limits | None, break_it: Callable[[History], object]
) -> None:
    found = history() if limits is None else limited(limits)
    break_it(found)
    violations = found.violations()
    assert violations
    assert {text.split(":")[0] for text in violations} == {told}
