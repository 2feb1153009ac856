"""Our commands inside the real `openstack` command, with a login and a real server."""

import json
import logging
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.keystone import Keystone, User
from tests.server import ServerProcess
from tests.test_tls import make_certificate, over_tls, started
from zaqar_lite.client import Client

shell = pytest.importorskip("openstackclient.shell")
pytest.importorskip("zaqarclient")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
Run = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def identity(server: ServerProcess) -> Iterator[Keystone]:
    """Keystone with a catalogue that points to the server."""
    with Keystone() as running:
        running.state.messaging = server.url
        running.state.users["ada"] = User("secret", "demo")
        yield running


@pytest.fixture
def demo(server: ServerProcess) -> Iterator[Client]:
    """A client of the project that the token is for."""
    with Client(server.url, project="demo") as made:
        yield made


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Take away what `openstack` adds to the root logger: it writes to an output that is closed."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [one for one in root.handlers if one not in before]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def openstack(
    identity: Keystone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `openstack messaging ...`; return its exit code and its JSON."""
    environment = {
        "OS_AUTH_URL": f"{identity.url}/v3",
        "OS_USERNAME": "ada",
        "OS_PASSWORD": "secret",
        "OS_PROJECT_NAME": "demo",
        "OS_USER_DOMAIN_NAME": "Default",
        "OS_PROJECT_DOMAIN_NAME": "Default",
        "OS_IDENTITY_API_VERSION": "3",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def runner(*words: str, form: bool = True, first: Sequence[str] = ()) -> tuple[int, Any]:
        code = shell.main([*first, "messaging", *words, *(["-f", "json"] if form else [])])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out.strip() else printed.err

    return runner


def test_delayed_messages_are_listed_edited_and_cancelled(
    openstack: Run, demo: Client, queue: str
) -> None:
    demo.create_queue(queue, {"_default_message_delay": 300})
    first, second = demo.post_batch(queue, [{"n": 1}, {"n": 2}])
    code, rows = openstack("delayed", "list", queue)
    assert code == 0
    assert [row["ID"] for row in rows] == [first, second]
    code, edited = openstack(
        "message", "edit", queue, first, "--body", '{"n": 9}', "--message-ttl", "600"
    )
    assert (edited["Body"], edited["TTL"]) == ('{"n": 9}', 600)
    assert openstack("delayed", "cancel", queue, first, form=False)[0] == 0
    assert openstack("delayed", "cancel", queue, "--all", form=False)[0] == 0
    assert demo.stats(queue).total == 0


def test_messages_are_shown_and_deleted_with_their_claim(
    openstack: Run, demo: Client, queue: str
) -> None:
    first, second = demo.post_batch(queue, ["a", "b"])
    assert {row["Body"] for row in openstack("message", "show", queue, first, second)[1]} == {
        '"a"',
        '"b"',
    }
    held = demo.create_claim(queue, limit=1)
    assert held is not None
    code, said = openstack("message", "delete", queue, first, form=False)
    assert code == 1
    assert "Unable to delete" in said
    words = ("message", "delete", queue, first, "--claim-id", held.id)
    assert openstack(*words, form=False)[0] == 0
    assert openstack("message", "delete", queue, second, "--force", form=False)[0] == 0
    assert demo.stats(queue).total == 0


def test_dead_letters_are_listed_counted_and_moved(
    openstack: Run, demo: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    dead = f"{queue}-dead"
    demo.create_queue(dead)
    demo.create_queue(queue, {"_dead_letter_queue": dead, "_max_claim_count": 1})
    demo.post(queue, "poison")
    with demo.claim(queue) as claim:
        claim.skip(*claim.messages)
    assert demo.create_claim(queue) is None
    assert openstack("dlq", "count", dead)[1] == [{"Source": queue, "Letters": 1}]
    (letter,) = openstack("dlq", "list", dead)[1]
    assert (letter["Body"], letter["Reason"]) == ('"poison"', "max_claims")
    dry = openstack("dlq", "redrive", dead, "--dry-run")[1]
    assert dry == [{"Target": queue, "Would Move": 1}]
    demo.post(dead, "by hand")
    assert openstack("dlq", "redrive", dead)[1] == [{"Target": queue, "Moved": 1}]
    assert "Letters that name no source (give --to): 1" in caplog.text
    assert demo.stats(dead).ready == 1


def test_the_authority_of_the_command_is_trusted(
    openstack: Run, identity: Keystone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cert, key = make_certificate(tmp_path, "first")
    with started(over_tls(cert, key)) as server:
        url = server.url.replace("http:", "https:")
        monkeypatch.setattr(identity.state, "messaging", url)
        trusting = ssl.create_default_context(cafile=cert)
        with Client(url, project="demo", ssl_context=trusting) as client:
            first = client.post("tls", 1)
        authority = ("--os-cacert", str(cert))
        (row,) = openstack("message", "show", "tls", first, first=authority)[1]
        assert row["ID"] == first
