"""Amazon's SDKs of five kinds, unmodified: each goes through one scenario in a process of its own.

The programs are in `side`: they do the same steps in the same order, and print a line of JSON for
each. An SDK checks by itself what it can: the MD5 of bodies (and Java's of attributes too), and
the types of errors.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.sqs.clients.conftest import (
    IS_LONG,
    Told,
    aioboto3_program,
    go_program,
    java_program,
    python_program,
    run_node,
    run_steps,
)

PROGRAMS: dict[str, Callable[[str, str], Told]] = {
    "boto3": lambda prefix, url: run_steps(python_program("scenario.py", "boto3", prefix), url),
    "aioboto3": lambda prefix, url: run_steps(
        aioboto3_program("scenario.py", "aioboto3", prefix), url
    ),
    "javascript": lambda prefix, url: run_node("scenario.mjs", prefix, url),
    "go": lambda prefix, url: run_steps(go_program(prefix), url),
    "java": lambda prefix, url: run_steps(java_program("Scenario.java", prefix), url),
}


MD5_OF_ATTRIBUTES = "6de274749a227eef9e6312dcd59f6ec8"
"""Of the attributes that each program sends; `test_attributes.py` has digests that AWS made."""
MD5_OF_BODY = hashlib.md5(b"first", usedforsecurity=False).hexdigest()

STEPS: dict[str, dict[str, Any]] = {
    "create": {"visibility": "60"},
    "find": {"same": True, "missing": True, "listed": 2},
    "send": {"body": MD5_OF_BODY, "attributes": MD5_OF_ATTRIBUTES},
    "receive": {
        "body": "first",
        "text": "grüße",
        "number": "42",
        "bytes": "0001feff",
        "attributes": MD5_OF_ATTRIBUTES,
        "count": "1",
    },
    "visibility": {"hidden": 0, "body": "first", "count": "2"},
    "delete": {"visible": "0", "hidden": "0"},
    "send_batch": {"sent": 10, "failed": 0},
    "receive_batch": {"bodies": [f"body {n}" for n in range(10)], "extended": 10},
    "delete_batch": {"deleted": 9, "failed": ["e9", "ReceiptHandleIsInvalid", True]},
    "wait": {"early": 0, "body": "late"},
    "dead_letter": {"back": 0, "body": "poison"},
    "redrive": {"handle": True, "status": True, "body": "poison"},
    "drop": {"missing": True},
}


@pytest.fixture(scope="module", params=PROGRAMS)
def sdk(request: pytest.FixtureRequest, prefix: str) -> tuple[str, str]:
    """An SDK, and what the names of its queues begin with; most need a toolchain of their own."""
    if request.param != "boto3" and not IS_LONG:
        pytest.skip("needs a toolchain: tests/run --all")
    return request.param, f"{request.param}-{prefix}"


@pytest.fixture(scope="module")
def told(sdk: tuple[str, str], sqs_url: str) -> Told:
    """What an SDK's program said of each step."""
    name, prefix = sdk
    return PROGRAMS[name](prefix, sqs_url)


@pytest.mark.parametrize("step", STEPS)
def test_an_sdk_does_each_step(told: Told, step: str) -> None:
    expected = STEPS[step]
    assert {name: told[step].get(name) for name in expected} == expected


def test_an_sdk_finds_its_queues_by_their_names(told: Told, sdk: tuple[str, str]) -> None:
    jobs, dead = f"{sdk[1]}-jobs", f"{sdk[1]}-dead"
    assert (told["create"]["queue"], told["create"]["dead_letters"]) == (jobs, dead)
    assert told["dead_letter"]["sources"] == [jobs]


def test_an_sdk_waits_as_long_as_a_message_is_delayed(told: Told) -> None:
    assert 0.5 < told["wait"]["seconds"] < 8


def test_the_url_of_a_queue_is_where_an_sdk_sends(told: Told) -> None:
    assert "differs from" not in told.words
