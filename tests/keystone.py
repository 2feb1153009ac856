"""A small, fast Keystone v3: users with roles, tokens that end, are revoked, and are counted.

It decides as Keystone does: a token may ask about itself, one with the role service or admin about
any, and a token with access rules is shown only to who says to know them. It can be away or slow.
"""

import datetime as dt
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.local_http import LocalHandler, LocalServer


class Call(NamedTuple):
    """A request that came: who asked about whom, or None for a log-in."""

    asker: str | None
    subject: str | None


@dataclass
class Issued:
    """A token of the stand-in."""

    user: str
    project: str | None
    roles: tuple[str, ...]
    ends: float
    rules: list[dict[str, str]] | None = None
    revoked: bool = False
    trust: str | None = None


@dataclass
class User:
    """Somebody who can log in."""

    password: str
    project: str
    roles: tuple[str, ...] = ("member",)


@dataclass
class State:
    """What the stand-in knows, and how it behaves."""

    tokens: dict[str, Issued] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    trusts: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    away: int | None = None
    """The status that it answers to everything."""
    garbled: bool = False
    """Whether what it says of a token can't be understood."""
    garbled_trust: Any = None
    """What it answers when it has made a trust, in place of the trust."""
    failing_trust: str = ""
    """The trust of which it can't make a token."""
    slow: float = 0.0
    offset: float = 0.0
    """Seconds that its clock is ahead."""
    lives: float = 3600
    """Seconds for which a token of a log-in lasts."""
    messaging: str | None = None
    """The address of the service in its catalogue."""


class Keystone(LocalServer):
    """The server; leaving its block ends it."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.state = State()

    def now(self) -> float:
        return time.time() + self.state.offset

    def issue(
        self,
        *roles: str,
        project: str | None = "demo",
        user: str = "alice",
        lives: float = 3600,
        rules: list[dict[str, str]] | None = None,
    ) -> str:
        """Make a token."""
        token = f"gAAAAA{uuid.uuid4().hex}"
        self.state.tokens[token] = Issued(
            user, project, roles or ("member",), self.now() + lives, rules
        )
        return token

    def revoke(self, token: str) -> None:
        self.state.tokens[token].revoked = True

    @property
    def log_ins(self) -> int:
        """How often somebody asked for a token."""
        return sum(call.subject is None for call in self.state.calls)

    @property
    def lookups(self) -> list[str]:
        """The tokens that were asked about, in order."""
        return [call.subject for call in self.state.calls if call.subject is not None]

    def validate(
        self, asker: str, subject: str, query: dict[str, list[str]], *, knows_rules: bool
    ) -> tuple[int, dict[str, Any] | None]:
        """Answer as GET /v3/auth/tokens does."""
        asking = self._live(asker)
        if asking is None:
            return 401, None
        about = self._live(subject, expired="allow_expired" in query)
        if about is None or (about.rules is not None and not knows_rules):
            return 404, None
        if asker != subject and not {"service", "admin"}.intersection(asking.roles):
            return 403, None
        return 200, self.document(about, catalog="nocatalog" not in query)

    def document(self, token: Issued, *, catalog: bool) -> dict[str, Any]:
        domain = {"id": "default", "name": "Default"}
        written: dict[str, Any] = {
            "methods": ["password"],
            "user": {"id": token.user, "name": token.user, "domain": domain},
            "roles": [{"id": role, "name": role} for role in token.roles],
            "issued_at": "2020-01-01T00:00:00.000000Z",
            "expires_at": dt.datetime.fromtimestamp(token.ends, dt.UTC).strftime(
                "%Y-%m-%dT%H:%M:%S.%fZ"
            ),
        }
        if token.project is None:
            written["system"] = {"all": True}
        else:
            written["project"] = {"id": token.project, "name": token.project, "domain": domain}
        if token.rules is not None:
            written["application_credential"] = {"access_rules": token.rules}
        if catalog:
            written["catalog"] = self._catalog()
        return {"token": [written] if self.state.garbled else written}

    def _catalog(self) -> list[dict[str, Any]]:
        if self.state.messaging is None:
            return []
        endpoint = {"interface": "public", "region": "here", "region_id": "here", "id": "e"}
        endpoints = [{**endpoint, "url": self.state.messaging}]
        return [{"type": "messaging", "name": "zaqar", "id": "s", "endpoints": endpoints}]

    def _live(self, text: str, *, expired: bool = False) -> Issued | None:
        token = self.state.tokens.get(text)
        if token is not None and token.trust not in (None, *self.state.trusts):
            return None
        if token is None or token.revoked or (token.ends <= self.now() and not expired):
            return None
        return token


class _Handler(LocalHandler):
    server: Keystone

    def get(self) -> None:
        if self.path.rstrip("/") == "/v3":
            links = [{"rel": "self", "href": f"{self.server.url}/v3"}]
            version = {"id": "v3.14", "status": "stable", "links": links}
            self._answer(200, {"version": version})
            return
        subject = self.headers.get("X-Subject-Token", "")
        asker = self.headers.get("X-Auth-Token", "")
        if self._is_away(Call(asker, subject)):
            return
        parts = urlsplit(self.path)
        if parts.path != "/v3/auth/tokens":
            self.answer(404, b"<h1>Not Found</h1>", {})
            return
        status, document = self.server.validate(
            asker,
            subject,
            parse_qs(parts.query, keep_blank_values=True),
            knows_rules=self.headers.get("OpenStack-Identity-Access-Rules") is not None,
        )
        self._answer(status, document or {"error": {"code": status}})

    def post(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_away(Call(None, None)):
            return
        if self.path == "/v3/OS-TRUST/trusts":
            self._make_trust(document["trust"])
            return
        asked = document["auth"]
        # An application credential is known by the name of its user here, and is of no scope.
        credential = asked["identity"].get("application_credential")
        given = credential or asked["identity"]["password"]["user"]
        name = given["id"] if credential else given["name"]
        user = self.server.state.users.get(name)
        right = user is not None and (credential or given["domain"] == {"name": "Default"})
        secret = given["secret" if credential else "password"]
        if user is None or not right or user.password != secret:
            self._answer(401, {"error": {"code": 401}})
            return
        scope = asked.get("scope", {})
        if "OS-TRUST:trust" in scope:
            self._log_in_by(scope["OS-TRUST:trust"]["id"])
            return
        if not credential:
            assert scope["project"] == {"name": user.project, "domain": {"name": "Default"}}
        lives = self.server.state.lives
        token = self.server.issue(*user.roles, project=user.project, user=name, lives=lives)
        document = self.server.document(self.server.state.tokens[token], catalog=True)
        self._answer(201, document, {"X-Subject-Token": token})

    def delete(self) -> None:
        """End a trust, for its trustor or an administrator, as Keystone does."""
        asker = self.headers.get("X-Auth-Token", "")
        if self._is_away(Call(asker, None)):
            return
        asking, state = self.server._live(asker), self.server.state
        trust = state.trusts.get(self.path.rpartition("/")[2])
        if asking is None:
            self._answer(401, {"error": {"code": 401}})
        elif trust is None:
            self._answer(404, {"error": {"code": 404}})
        elif asking.user != trust["trustor_user_id"] and "admin" not in asking.roles:
            self._answer(403, {"error": {"code": 403}})
        else:
            del state.trusts[trust["id"]]
            self._answer(204, None)

    def _make_trust(self, trust: dict[str, Any]) -> None:
        asking = self.server._live(self.headers["X-Auth-Token"])
        if asking is None or asking.trust or trust["trustor_user_id"] != asking.user:
            self._answer(403, {"error": {"code": 403}})
            return
        made = {**trust, "id": uuid.uuid4().hex}
        self.server.state.trusts[made["id"]] = made
        garbled = self.server.state.garbled_trust
        self._answer(201, {"trust": made} if garbled is None else garbled)

    def _log_in_by(self, name: str) -> None:
        """Give a token of a trust, which is in the name of its trustor."""
        trust = self.server.state.trusts.get(name)
        if name == self.server.state.failing_trust:
            self._answer(500, {"error": {"code": 500}})
            return
        if trust is None:
            self._answer(403, {"error": {"code": 403}})
            return
        roles = [role["name"] for role in trust["roles"]]
        user, project = trust["trustor_user_id"], trust["project_id"]
        token = self.server.issue(*roles, project=project, user=user)
        issued = self.server.state.tokens[token]
        issued.trust = name
        self._answer(201, self.server.document(issued, catalog=False), {"X-Subject-Token": token})

    def _is_away(self, call: Call) -> bool:
        state = self.server.state
        state.calls.append(call)
        time.sleep(state.slow)
        if state.away is not None:
            self._answer(state.away, {"error": {"code": state.away}}, {"Location": "/elsewhere"})
        return state.away is not None

    def _answer(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        self.answer(status, body, headers or {})


def account_at(
    url: str, password: str, username: str = "zaqar", project: str = "service"
) -> dict[str, str]:
    """What clouds.yaml says of a server's account."""
    auth = {"auth_url": url, "username": username, "password": password}
    return {**auth, "project_name": project}


def cloud_in(folder: Path, auth: Mapping[str, Any], **more: Any) -> str:
    """Write clouds.yaml with the entry `ours`; answer the path of the file."""
    file = folder / "clouds.yaml"
    entry = {"auth": auth, "region_name": "here", "identity_api_version": "3", **more}
    file.write_text(json.dumps({"clouds": {"ours": entry}}))
    return str(file)
