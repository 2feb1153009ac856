"""Keys on the command line and in the SDK, against a server that asks for them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.running import Run
from tests.server import ServerProcess
from tests.services.process import run_program
from zaqar_lite.client import Client, Forbidden, KeyAuth, Overloaded, Unauthenticated


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A server that knows keys, and its first one."""
    file = tmp_path_factory.mktemp("keys") / "admin.key"
    options = ("--auth", "keys", "--admin-key-file", str(file))
    process = ServerProcess("memory://", *options, env={"ZAQAR_LITE_KEY": "not the server's"})
    with process.start(ready=401):
        yield process, file.read_text().strip()


@pytest.fixture
def keyed(run: Run, guarded: tuple[ServerProcess, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against that server with its first key."""
    monkeypatch.setenv("ZAQAR_LITE_KEY", guarded[1])
    monkeypatch.delenv("ZAQAR_LITE_PROJECT")
    run.url = guarded[0].url
    return run


def test_a_key_is_made_as_the_readme_says(guarded: tuple[ServerProcess, str]) -> None:
    server, admin = guarded
    command = ["zaqar_lite.cli", "key", "create", "--project", "p", "--grant", "send:*", "--json"]
    done = run_program(
        [sys.executable, "-m", *command, "--url", server.url],
        env={"ZAQAR_LITE_KEY": admin, "PYTHONPATH": ":".join(sys.path)},
        check=True,
    )
    made = json.loads(done.stdout)
    assert made["key"].startswith(f"zq_{made['id']}_")
    with Client(server.url, key=made["key"]) as client:
        client.post("orders", 1)
        with pytest.raises(Forbidden):
            list(client.list_messages("orders"))


def test_keys_are_listed_disabled_rotated_and_deleted(
    keyed: Run, guarded: tuple[ServerProcess, str]
) -> None:
    words = ("--project", "shop", "--grant", "*:*", "--deny", "send:x", "--expires", "90d")
    code, (made,) = keyed("key", "create", *words, "--description", "ours")
    assert (code, made["grants"], made["project"]) == (0, ["*:*", "!send:x"], "shop")
    key_id = made["id"]
    _, listed = keyed("key", "list", "--project", "shop")
    assert [(row["id"], "key" in row) for row in listed] == [(key_id, False)]
    _, (off,) = keyed("key", "disable", key_id)
    assert off["disabled"]
    assert keyed("queue", "list", "--access-key", made["key"])[0] == 1
    _, (on,) = keyed("key", "enable", key_id)
    assert not on["disabled"]
    _, (new,) = keyed("key", "rotate", key_id, "--overlap", "1h")
    assert new["key"] != made["key"]
    for key in (made["key"], new["key"]):
        assert keyed("queue", "list", "--access-key", key)[0] == 0
    assert keyed("--access-key", new["key"], "queue", "create", "orders")[0] == 0
    _, (working,) = keyed("key", "create", "--project", "shop", "--grant", "receive:orders")
    keyed("message", "post", "orders", "1", "--project", "shop")
    own = ("orders", "--access-key", working["key"])
    _, (held,) = keyed("claim", "create", *own)
    assert keyed("message", "delete", *own, held["id"], "--claim", held["claim_id"])[0] == 0
    _, (managing,) = keyed("key", "create", "--project", "shop", "--grant", "manage:orders")
    blind = ("queue", "purge", "orders", "--yes", "--access-key", managing["key"])
    purged = {"queue": "orders", "purged": True, "messages": None, "dry_run": False}
    assert keyed(*blind) == (0, [purged])
    assert keyed("key", "delete", key_id) == (0, [{"id": key_id, "deleted": True}])
    assert keyed("key", "delete", key_id)[0] == 3
    assert keyed("queue", "list", "--access-key", made["key"])[0] == 1
    _, (operator,) = keyed("key", "create", "--operator", "--grant", "read:*")
    assert operator.get("project") is None


def test_a_key_is_in_no_repr_and_in_no_log(
    guarded: tuple[ServerProcess, str], tmp_path: Path
) -> None:
    server, admin = guarded
    auth = KeyAuth(admin)
    assert admin not in repr(auth)
    with Client(server.url, auth=auth, project="a") as client:
        made = client.create_key(["read:*"], expires=60)
        assert str(made.key) not in repr(made)
        assert client.get_key(made.id).expires_at == made.expires_at
    for wrong in ("", "a b", "ä", "a\nb"):
        with pytest.raises(ValueError, match="a key is a text"):
            KeyAuth(wrong)
    with pytest.raises(ValueError, match="not both"):
        Client(server.url, key=admin, auth=auth)
    with Client(server.url, key=admin[:-1] + "g", retries=None) as client:
        with pytest.raises((Unauthenticated, Overloaded)) as caught:
            client.ping()
        assert admin[:-1] not in str(caught.value) + repr(client)
    assert admin[20:-1] not in server.log()
