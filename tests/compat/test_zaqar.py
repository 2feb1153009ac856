"""Zaqar's own tests of its HTTP and WebSocket transports, unmodified; with --all on every store."""

import base64
import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import services
from tests.server import ServerProcess
from tests.services.environments import ZAQAR
from tests.services.process import free_port, run_program

_SIDE = Path(__file__).with_name("zaqar_side")
_SECRET = "secret" * 6
# They replace a part of Zaqar's own program and ask what that was called with, or write into its
# database what no request may ask for.
_INSIDE = frozenset(
    {
        "QueueLifecycleBaseTest.test_list_returns_503_on_nopoolfound_exception",
        "SubscriptionTest.test_list_returns_503_on_nopoolfound_exception",
        "TestQueueLifecycleMongoDB.test_list_returns_503_on_nopoolfound_exception",
        "TestSubscriptionsMongoDB.test_list_returns_503_on_nopoolfound_exception",
        "TestTopicLifecycleMongoDB.test_list_returns_503_on_nopoolfound_exception",
        "TestAuth.test_auth_install",
        "TestHealthMongoDB.test_message_volume",
        "TestHealthMongoDB.test_operation_status",
        "TestSubscriptionsMongoDB.test_create_and_send_notification",
        "TestSubscriptionsMongoDB.test_create_with_trust",
        "TestSubscriptionsMongoDB.test_recreate",
        "TestSubscriptionsMongoDB.test_recreate_after_confirmed",
        "AuthTest.test_auth_response_serialization_format_1_True",
        "AuthTest.test_auth_response_serialization_format_2_False",
        "AuthTest.test_different_project",
        "AuthTest.test_failed_auth",
        "AuthTest.test_post",
        "AuthTest.test_post_between_auth",
        "AuthTest.test_reauth",
        "AuthTest.test_reauth_after_auth_failure",
        "SubscriptionTest.test_subscription_create",
        "SubscriptionTest.test_subscription_create_trust",
        "SubscriptionTest.test_subscription_get",
        "SubscriptionTest.test_subscription_list",
        "SubscriptionTest.test_subscription_sustainable_notifications_format",
    }
)
# The reference (clients.rst) says why each is answered otherwise.
_DIFFERENT = frozenset(
    {
        "TestClaimsFaultyDriver.test_simple",
        "TestMessagesFaultyDriver.test_simple",
    }
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers(
    store: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The environment of the tests: servers configured as they configure Zaqar."""
    if "ZAQAR_TEST_ALL" not in os.environ and not store.startswith("embedded:"):
        pytest.skip("what is said of one store holds for the others: tests/run --all")
    home = tmp_path_factory.mktemp("zaqar")
    clock, keys = home / "clock", home / "keys"
    clock.write_text("0", encoding="ascii")
    keys.touch(mode=0o600)
    keys.write_text(f"one:{base64.b64encode(bytes(32)).decode()}\n", encoding="ascii")
    env = {
        "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(clock),
        "ZAQAR_LITE_ENCRYPTION_KEY_FILE": str(keys),
        "ZAQAR_LITE_SIGNED_URL_SECRET_KEY": _SECRET,
        "ZAQAR_LITE_SMTP_URL": "smtp://127.0.0.1",
        "ZAQAR_LITE_SMTP_SENDER": "queue@example.org",
    }
    frames = free_port()
    kinds: Mapping[str, Mapping[str, str]] = {
        "plain": {"ZAQAR_LITE_WEBSOCKET_PORT": str(frames)},
        "pooled": {"ZAQAR_LITE_POOLING": "true"},
        # None of its requests brings a token, so nobody asks Keystone.
        "guarded": {
            "ZAQAR_LITE_AUTH": "keystone",
            "ZAQAR_LITE_KEYSTONE_URL": f"http://127.0.0.1:{free_port()}/v3",
        },
        "small": {
            "ZAQAR_LITE_MAX_QUEUE_METADATA": "64",
            "ZAQAR_LITE_MAX_MESSAGES_POST_SIZE": "256",
        },
        "strict": {
            "ZAQAR_LITE_CLIENT_ID_UUID_SAFE": "off",
            "ZAQAR_LITE_MESSAGE_DELETE_WITH_CLAIM_ID": "true",
        },
    }
    with ExitStack() as running:
        urls = {"websocket": f"ws://127.0.0.1:{frames}/"}
        for kind, more in kinds.items():
            place = f"{store}-{kind}" if store.startswith("embedded:") else store
            server = ServerProcess(place, "--admin-mode", env={**env, **more})
            started = server.start(ready=401 if kind == "guarded" else 204)
            urls[kind] = running.enter_context(started).url
        with services.start_redis() as redis:
            broken = ServerProcess(redis.url, "--admin-mode", env=env)
            urls["broken"] = running.enter_context(broken).url
        mongo = request.getfixturevalue("mongodb_server").url
        yield {
            "SERVERS": json.dumps(urls),
            "CLOCK_OFFSET_FILE": str(clock),
            "SIGNED_URL_SECRET_KEY": _SECRET,
            "ZAQAR_TEST_MONGODB": "1",
            "ZAQAR_TEST_MONGODB_URL": "/".join(mongo.split("/")[:3]),
        }


def test_zaqars_tests_of_its_transports_pass(servers: dict[str, str], tmp_path: Path) -> None:
    python = ZAQAR.program("python")
    found = "import pathlib, zaqar.tests; print(pathlib.Path(zaqar.tests.__file__).parent)"
    tests = Path(subprocess.check_output([python, "-c", found], text=True).strip())
    transport = tests / "unit" / "transport"
    report = tmp_path / "report.xml"
    # It lies below this project, whose configuration is not for it.
    words = ["-c", os.devnull, "-p", "over_the_wire", "-p", "no:cacheprovider", "-q"]
    words += ["--rootdir", str(tests), f"--junitxml={report}"]
    folders = [transport / "wsgi" / "v2_0", transport / "websocket" / "v2"]
    environment = {
        "PYTHONPATH": str(_SIDE),
        "ZAQAR_TESTS_CONFIGS_DIR": str(tests / "etc"),
    }
    done = run_program(
        [python, "-m", "pytest", *words, *map(str, folders)],
        env={**os.environ, **servers, **environment},
        cwd=tmp_path,
    )
    assert report.exists(), done.stdout + done.stderr
    outcomes = _outcomes(report)
    failed = {name: text for name, text in outcomes.items() if text}
    told = [f"{name}: {failed[name]}" for name in failed.keys() - _INSIDE - _DIFFERENT]
    assert not told, "\n\n".join(told)
    assert len(outcomes) > 400


def _outcomes(report: Path) -> dict[str, str]:
    """Tell how each test failed, or nothing; those that Zaqar itself skips are left out."""
    tree = ET.parse(report)  # noqa: S314 - pytest wrote it
    cases = [one for one in tree.iter("testcase") if one.find("skipped") is None]
    return {
        f"{one.attrib['classname'].rpartition('.')[2]}.{one.attrib['name']}": "".join(
            str(how.text) for how in one if how.tag in {"failure", "error"}
        )
        for one in cases
    }
