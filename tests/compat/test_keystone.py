"""A real Keystone, a real server, and the real `openstack` command between them."""

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.keystone import account_at, cloud_in
from tests.server import ServerProcess
from tests.services.keystone import PASSWORD, KeystoneServer
from tests.services.process import run_program

pytestmark = pytest.mark.slow
CLIENT_ID = str(uuid.uuid4())
GUIDE = Path(__file__).parents[2] / "api-ref" / "source" / "guide-openstack.rst"
_SECURE = {"ZAQAR_LITE_ROLE_DEFAULTS": "secure", "ZAQAR_LITE_KEYSTONE_BELIEVED_FOR": "0"}


@dataclass
class Cloud:
    """A cloud whose catalogue leads to our server."""

    keystone: KeystoneServer
    admin: str
    server: str

    def make_user(self, role: str, project: str) -> str:
        """A user of a project, which is made where there is none; answer the user's name."""
        name = f"{role}-{uuid.uuid4().hex[:8]}"
        call = self.keystone.call
        with suppress(httpx.HTTPStatusError):  # 409 where another test of the run has made it
            document = {"project": {"name": project, "domain_id": "default"}}
            call(self.admin, "POST", "/projects", document)
        place = call(self.admin, "GET", f"/projects?name={project}")[project]
        user = {"name": name, "password": PASSWORD, "domain_id": "default"}
        made = call(self.admin, "POST", "/users", {"user": user})
        roles = call(self.admin, "GET", f"/roles?name={role}")
        path = f"/projects/{place['id']}/users/{made['id']}/roles/{roles[role]['id']}"
        call(self.admin, "PUT", path)
        return name

    def ask(
        self, token: str, path: str = "/v2/queues", method: str = "GET", **headers: str
    ) -> httpx.Response:
        """Send a request to our server."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"Client-ID": CLIENT_ID, "X-Auth-Token": token}
        body: dict[str, Any] | None = {} if method in ("PUT", "POST") else None
        return httpx.request(method, f"{self.server}{path}", headers=named, json=body, timeout=60)


@pytest.fixture(scope="module")
def cloud(keystone_server: KeystoneServer) -> Iterator[Cloud]:
    admin = keystone_server.log_in("admin", project="admin")
    options = (
        "--auth",
        "keystone",
        "--keystone-url",
        keystone_server.url,
        "--admin-mode",
        "--pooling",
    )
    with ServerProcess("memory://", *options, env=_SECURE).start(ready=401) as server:
        service = {"name": "keystone", "type": "identity"}  # as every cloud has it
        made = keystone_server.call(admin, "POST", "/services", {"service": service})
        endpoint = {"service_id": made["id"], "region_id": "RegionOne"}
        endpoint |= {"interface": "public", "url": keystone_server.url}
        keystone_server.call(admin, "POST", "/endpoints", {"endpoint": endpoint})
        yield Cloud(keystone_server, admin, server.url)


def words_of(cloud: Cloud, user: str, project: str) -> list[str]:
    """The options by which `openstack` logs in as a user of a project."""
    return [
        *("--os-auth-url", cloud.keystone.url, "--os-identity-api-version", "3"),
        *("--os-username", user, "--os-password", PASSWORD, "--os-user-domain-id", "default"),
        *("--os-project-name", project, "--os-project-domain-id", "default"),
    ]


def guide(*beginnings: str) -> list[list[str]]:
    """The commands of the guide that begin so, without the name of the program."""
    lines = re.findall(r"^   \$ (.+)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines if line.startswith(beginnings)]


# The program's own entry point, again and again: it takes five seconds to find its plugins.
SHELL = """
import contextlib, io, json, sys
from openstackclient.shell import main
for line in sys.stdin:
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            code = main(json.loads(line))
        except SystemExit as left:
            code = left.code
    print(json.dumps([code or 0, printed.getvalue(), said.getvalue()]), flush=True)
"""
Openstack = Callable[..., str]


@pytest.fixture(scope="module")
def openstack(cloud: Cloud) -> Iterator[Openstack]:
    """A function that runs `openstack messaging ...` as a user; it answers what that prints.

    The guide's own commands have led the catalogue to our server.
    """
    environment = {name: value for name, value in os.environ.items() if name[:3] != "OS_"}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SHELL],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        asked, answers = shell.stdin, shell.stdout

        def run(user: str, project: str, words: Sequence[str]) -> str:
            print(json.dumps([*words_of(cloud, user, project), *words]), file=asked, flush=True)
            code, printed, said = json.loads(answers.readline())
            assert code == 0, said
            assert isinstance(printed, str)
            return printed

        service, *endpoints = guide("openstack service", "openstack endpoint")
        run("admin", "admin", service)
        assert len(endpoints) == 2
        for *words, _ in endpoints:
            run("admin", "admin", [*words, cloud.server])
        yield lambda user, project, *words: run(user, project, ["messaging", *words])
        asked.close()


@pytest.mark.usefixtures("openstack")
def test_the_guide_leads_to_a_list_of_queues_by_a_password(cloud: Cloud) -> None:
    """Each in a process of its own, as a user has them: the client keeps who it was first."""
    program = str(Path(sys.executable).with_name("openstack"))
    user, printed = cloud.make_user("manager", "shop"), ""
    create, listing = guide("openstack messaging")
    for command in (create, [*listing, "-f", "json"]):
        words = [program, *words_of(cloud, user, "shop"), *command]
        done = run_program(words)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    assert [row["Name"] for row in json.loads(printed)] == ["orders"]


def test_openstack_makes_pools_and_flavors(cloud: Cloud, openstack: Openstack) -> None:
    user = cloud.make_user("admin", "shop")

    def run(*words: str) -> Any:
        printed = openstack(user, "shop", *words)
        return json.loads(printed) if "json" in words else printed

    as_json = ("-f", "json")
    uri = "redis://me:secret@localhost:1/0"
    made = run("pool", "create", "one", uri, "7", *as_json)
    assert (made["Name"], made["Weight"]) == ("one", 7)
    (listed,) = run("pool", "list", *as_json)
    assert (listed["Name"], listed["URI"]) == ("one", "redis://***@localhost:1/0")
    run("flavor", "create", "fast", "--pool_list", "one")
    shown = run("flavor", "show", "fast", *as_json)
    assert (shown["Name"], shown["Pool list"]) == ("fast", ["one"])
    run("flavor", "delete", "fast")
    run("pool", "delete", "one")


def test_openstack_subscribes_changes_and_ends(cloud: Cloud, openstack: Openstack) -> None:
    """By the commands of python-zaqarclient, unmodified."""
    user, hook = cloud.make_user("manager", "hooks"), "http://receiver.example/"
    shown = ("-f", "json")

    def run(verb: str, *words: str) -> str:
        return openstack(user, "hooks", "subscription", verb, "orders", *words)

    made = json.loads(run("create", hook, "600", "--options", '{"a": 1}', *shown))
    (listed,) = json.loads(run("list", *shown))
    assert (listed["ID"], listed["Subscriber"], listed["TTL"]) == (made["ID"], hook, 600)
    run("update", made["ID"], "--subscriber", f"{hook}b", "--ttl", "900")
    changed = json.loads(run("show", made["ID"], *shown))
    assert (changed["Subscriber"], changed["TTL"]) == (f"{hook}b", 900)
    run("delete", made["ID"])
    assert json.loads(run("list", *shown)) == []


@pytest.mark.parametrize(
    ("role", "statuses"),
    [
        ("reader", (200, 403, 403, 403)),
        ("member", (200, 204, 403, 403)),
        ("manager", (200, 204, 201, 403)),
        ("admin", (200, 204, 201, 200)),
        ("service", (403, 403, 403, 403)),
    ],
)
def test_roles_open_what_the_second_defaults_say(
    cloud: Cloud, role: str, statuses: tuple[int, ...]
) -> None:
    token = cloud.keystone.log_in(cloud.make_user(role, "roles"), project="roles")
    shots = [
        ("GET", "/v2/queues"),
        ("POST", "/v2/queues/absent/claims"),
        ("PUT", f"/v2/queues/{role}"),
        ("GET", "/v2/health"),
    ]
    assert tuple(cloud.ask(token, path, method).status_code for method, path in shots) == statuses


def test_a_token_that_is_revoked_or_of_no_project_opens_nothing(cloud: Cloud) -> None:
    user = cloud.make_user("member", "revoking")
    token = cloud.keystone.log_in(user, project="revoking")
    assert cloud.ask(token).status_code == 200
    assert cloud.ask(token, X_Project_ID="other").status_code == 403
    cloud.keystone.call(token, "DELETE", "/auth/tokens", X_Subject_Token=token)
    answer = cloud.ask(token)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == f'Keystone uri="{cloud.keystone.url}"'
    assert cloud.ask(token[:-5] + "AAAA=").status_code == 401
    answer = cloud.ask(cloud.keystone.log_in("admin", system=True), X_Project_ID="other")
    assert (answer.status_code, answer.json()["title"]) == (400, "Project-Id Missing")
    assert "token belongs to no project" in answer.text


def test_an_application_credential_opens_what_its_rules_say(cloud: Cloud) -> None:
    user = cloud.make_user("member", "applications")
    token = cloud.keystone.log_in(user, project="applications")
    identity = cloud.keystone.call(token, "GET", "/auth/tokens", X_Subject_Token=token)["user"]
    rule = {"service": "messaging", "method": "GET", "path": "/v2/queues/*/messages"}
    wanted = {"name": "lister", "access_rules": [rule]}
    path = f"/users/{identity['id']}/application_credentials"
    made = cloud.keystone.call(token, "POST", path, {"application_credential": wanted})
    limited = cloud.keystone.log_in_by_application(made)
    assert cloud.ask(limited, "/v2/queues/orders/messages").status_code == 200
    assert cloud.ask(limited, "/v2/queues").status_code == 401
    service = cloud.keystone.log_in(cloud.make_user("service", "service"), project="service")
    assert cloud.ask(limited, "/v2/queues", X_Service_Token=service).status_code == 200
    assert cloud.ask(token, X_Service_Token=service).status_code == 200
    assert cloud.ask(token, X_Service_Token=token).status_code == 401


def test_the_server_asks_by_an_account_of_its_own(cloud: Cloud, tmp_path: Path) -> None:
    account = cloud.make_user("service", "service")
    token = cloud.keystone.log_in(cloud.make_user("member", "asked"), project="asked")
    file = cloud_in(tmp_path, account_at(cloud.keystone.url, PASSWORD, account))
    env = {"ZAQAR_LITE_KEYSTONE_CLOUD": "ours", "OS_CLIENT_CONFIG_FILE": file}
    with ServerProcess("memory://", "--auth", "keystone", env=env).start(ready=401) as server:
        mine = Cloud(cloud.keystone, cloud.admin, server.url)
        assert mine.ask(token).status_code == 200
        assert mine.ask("unknown").status_code == 401
        assert PASSWORD not in server.log()
