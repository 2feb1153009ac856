"""policy.yaml: an operator's own rules for tokens, by the names of Zaqar's."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, Api, MakeApi
from tests.keystone import Keystone
from tests.server import ServerProcess
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

pytestmark = pytest.mark.anyio
POLICY = """
"can_post": "role:poster or role:admin"
"messages:create": "rule:can_post and not role:banned"
"queues:get_all": "user_id:alice"
"queues:create": "'orders':%(queue_name)s and project_id:%(project_id)s"
"queues:delete": "!"
"claims:create": "rule:queues:create"
"queues:stats": "rule:queues:get and not role:banned"
"pools:create": "role:admin"
"""


def settings(keystone: Keystone, path: Path, **more: Any) -> dict[str, Any]:
    return {"auth": "keystone", "keystone_url": keystone.url, "policy_file": path, **more}


async def status(api: Api, token: str, method: str, path: str) -> int:
    document = {"messages": [{"body": 1}]} if path.endswith("messages") else {}
    content = None if method == "GET" else document
    return (await api.call(method, path, content, X_Auth_Token=token)).status_code


async def test_a_rule_of_the_file_counts_and_the_defaults_do_elsewhere(
    make_api: MakeApi, keystone: Keystone, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    async with make_api(**settings(keystone, path, role_defaults="secure")) as api:
        queue, post = "/v2/queues/orders", "/v2/queues/orders/messages"
        poster, banned = keystone.issue("poster"), keystone.issue("poster", "banned")
        assert await status(api, poster, "POST", post) == 201
        assert await status(api, banned, "POST", post) == 403
        assert await status(api, keystone.issue("member"), "POST", post) == 403
        assert await status(api, keystone.issue("member", user="bob"), "GET", "/v2/queues") == 403
        assert await status(api, keystone.issue("nothing"), "GET", "/v2/queues") == 200
        assert await status(api, keystone.issue("nothing"), "PUT", queue) in (201, 204)
        assert await status(api, keystone.issue("admin"), "PUT", "/v2/queues/other") == 403
        assert await status(api, keystone.issue("admin"), "DELETE", queue) == 403
        assert await status(api, keystone.issue("nothing"), "POST", f"{queue}/claims") == 201
        assert await status(api, keystone.issue("reader"), "GET", f"{queue}/stats") == 200
        assert await status(api, keystone.issue("nothing"), "GET", f"{queue}/stats") == 403
        # The file says nothing of these.
        assert await status(api, keystone.issue("reader"), "GET", queue) == 200
        assert await status(api, keystone.issue("nothing"), "GET", queue) == 403


WRONG = {
    "no YAML": '"queues:get": [',
    "a list": "- a\n- b",
    "a number": '"queues:get": 1',
    "an unknown name": '"queues:gett": ""',
    "no rule": '"queues:get": "role:a &&& nonsense"',
    "a part that is none": '"queues:get": "role:a or nonsense"',
    "an open bracket": '"queues:get": "(role:a"',
    "an unknown reference": '"queues:get": "rule:absent"',
    "a circle": '"a": "rule:b"\n"b": "rule:a"',
    "a half-written value": '"queues:get": "role:admin or project_id:%(x"',
    "a number of a name": '"queues:get": "role:a and not (role:b or project_id:%(queue_name)d)"',
    "a part of a text": '"queues:get": "@ or user_id.name:alice"',
    "a web server": '"queues:get": "http://example.org/%(queue_name)s"',
}


@pytest.mark.parametrize("text", [*WRONG.values(), None], ids=[*WRONG, "no file"])
def test_a_wrong_file_is_refused_at_the_start(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    if text is not None:
        path.write_text(text)
    overrides = {"store": "memory://", "auth": "keystone", "keystone_url": "http://127.0.0.1"}
    words = "No such file" if text is None else "policy_file"
    with pytest.raises(ConfigurationError, match=words):
        create_app(load(environment={}, overrides={**overrides, "policy_file": path}))
    with pytest.raises(ConfigurationError, match="auth must name"):
        load(environment={}, overrides={"auth": "keys", "policy_file": path})


def test_sighup_reads_the_file_again_and_a_wrong_one_changes_nothing(
    keystone: Keystone, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text('"queues:get_all": "role:first"')
    options = ("--auth", "keystone", "--keystone-url", keystone.url, "--policy-file", str(path))
    first, second = keystone.issue("first"), keystone.issue("second")
    with ServerProcess("memory://", *options).start(ready=401) as server:

        def statuses() -> list[int]:
            return [
                httpx.get(
                    f"{server.url}/v2/queues", headers={"Client-ID": CLIENT_ID, "X-Auth-Token": one}
                ).status_code
                for one in (first, second)
            ]

        def reload(text: str, said: str) -> None:
            path.write_text(text)
            os.kill(server.pid, signal.SIGHUP)
            server.wait_for(lambda: said in server.log())

        assert statuses() == [200, 403]
        reload('"queues:get_all": "role:second or nonsense"', "nothing was reloaded")
        assert "policy_file" in server.log()
        assert statuses() == [200, 403]
        reload('"queues:get_all": "role:second"', "reloaded: ")
        assert statuses() == [403, 200]
