"""What well-known consumers do with a message's visibility, beside what the SDKs' scenario says."""

import pytest

from tests.sqs.clients.conftest import IS_LONG, Told, run_node

pytestmark = pytest.mark.skipif(not IS_LONG, reason="half a minute: tests/run --all")


@pytest.fixture(scope="module")
def told(sqs_url: str, prefix: str) -> Told:
    """What sqs-consumer's program said of each step."""
    return run_node("consumer.mjs", prefix, sqs_url)


def test_a_message_whose_visibility_is_extended_stays_with_its_handler(
    told: Told,
) -> None:
    assert told["heartbeat"] == {"handled": [1], "rivals": [], "left": 0, "errors": []}


def test_a_handler_that_fails_gets_its_message_again_at_once(told: Told) -> None:
    assert told["failing"]["handled"] == [1, 2, 3]
    assert told["failing"]["seconds"] < 10


def test_a_message_of_a_handler_that_hangs_goes_to_another(told: Told) -> None:
    assert told["hung"]["handled"] == [2]
    assert told["hung"]["seconds"] >= 1
