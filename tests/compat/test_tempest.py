"""Tempest against a real server: the official plugin from PyPI, unmodified, and our own."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.compat.tempest import Tempest
from tests.keystone import Keystone
from tests.server import ServerProcess

pytestmark = pytest.mark.slow
# Every test of the official plugin that does not run here, with its reason, stands in the api-ref
# (clients.rst).
MISSING = r"test_trust_subscription"
# It counts the queues of its project; others leave some there. Tempest gives each class a project
# where it may make one.
COUNTING = r"TestManageQueue"
# It moves the server's clock, by the 70 s that it sleeps: nothing runs beside it.
MOVING = r"TestClaims\.test_dead_letter_queue"


@pytest.fixture(scope="module")
def keystone() -> Iterator[Keystone]:
    """Where users and server ask who is there."""
    with Keystone() as running:
        yield running


@pytest.fixture(scope="module")
def options(keystone: Keystone) -> Sequence[str]:
    """Have the server ask it."""
    return ("--auth", "keystone", "--keystone-url", f"{keystone.url}/v3")


@pytest.fixture(scope="module")
def tempest(
    server: ServerProcess,
    keystone: Keystone,
    clock: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Tempest:
    """A workspace in front of the server that all tests of this file share."""
    keystone.state.messaging = server.url
    return Tempest(keystone, tmp_path_factory.mktemp("tempest"), clock)


def test_passes_our_plugin(tempest: Tempest) -> None:
    status, output = tempest.run("run", "--serial", "--regex", r"^zaqar_lite_tempest_plugin")
    assert status == 0, output[-8000:]
    assert int(_count(output, "Passed")) >= 30
    assert _count(output, "Skipped") == "0"


def test_passes_the_official_plugin(tempest: Tempest) -> None:
    passed = 0
    for chosen, left_out in (
        (rf"^zaqar_tempest_plugin.*({COUNTING}|{MOVING})", MISSING),
        (r"^zaqar_tempest_plugin", f"{MISSING}|{COUNTING}|{MOVING}"),
    ):
        status, output = tempest.run(
            "run", "--serial", "--regex", chosen, "--exclude-regex", left_out
        )
        assert status == 0, output[-8000:]
        passed += int(_count(output, "Passed"))
    assert passed >= 120


def test_the_reference_says_what_of_the_official_plugin_is_left_out() -> None:
    page = Path(__file__).parents[2] / "api-ref" / "source" / "clients.rst"
    assert MISSING in page.read_text()


def _count(output: str, what: str) -> str:
    found = re.search(rf"^ - {what}: (\d+)$", output, re.MULTILINE)
    assert found is not None, output[-4000:]
    return found.group(1)
