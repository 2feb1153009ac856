"""OpenStack Keystone from PyPI: sqlite, Fernet tokens, run by keystone_side/keystone_node.py.

The database of a new cloud takes half a minute to make, so it is made once, kept beside the
environment, and copied for each server.
"""

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.services.environments import KEYSTONE
from tests.services.process import (
    Process,
    Service,
    answers,
    free_port,
    make_data_directory,
    missing,
    run_program,
)

_NODE = Path(__file__).with_name("keystone_side") / "keystone_node.py"
PASSWORD = "secret"
_DOMAIN = {"id": "default"}


@dataclass(frozen=True, kw_only=True)
class KeystoneServer(Service):
    """A Keystone; `url` ends with /v3. The user admin is its administrator."""

    def log_in(
        self,
        user: str,
        *,
        project: str | None = None,
        system: bool = False,
    ) -> str:
        """A token of a user by password, scoped to the project of that name, or to the system."""
        given = {"name": user, "domain": _DOMAIN, "password": PASSWORD}
        scope: Any = {"system": {"all": True}} if system else None
        if project is not None:
            scope = {"project": {"name": project, "domain": _DOMAIN}}
        return self._token({"methods": ["password"], "password": {"user": given}}, scope)

    def log_in_by_application(self, credential: dict[str, Any]) -> str:
        """A token of an application credential."""
        given = {name: credential[name] for name in ("id", "secret")}
        identity = {"methods": ["application_credential"], "application_credential": given}
        return self._token(identity, None)

    def call(
        self, token: str, method: str, path: str, document: Any = None, **headers: str
    ) -> dict[str, Any]:
        """Call the API; answer the one document that is in its answer."""
        named = {"X-Auth-Token": token, **{k.replace("_", "-"): v for k, v in headers.items()}}
        answer = httpx.request(
            method, f"{self.url}{path}", json=document, headers=named, timeout=60
        )
        answer.raise_for_status()
        if not answer.content:
            return {}
        ((_, found),) = [pair for pair in answer.json().items() if pair[0] != "links"]
        return dict(found) if isinstance(found, dict) else {entry["name"]: entry for entry in found}

    def _token(self, identity: dict[str, Any], scope: Any) -> str:
        auth = {"identity": identity, **({} if scope is None else {"scope": scope})}
        answer = httpx.post(f"{self.url}/auth/tokens", json={"auth": auth}, timeout=60)
        assert answer.status_code == 201, answer.text
        return answer.headers["X-Subject-Token"]


def start_keystone() -> KeystoneServer:
    """Start a server on a copy of the new cloud."""
    kept = keystone_directory()
    data, port = make_data_directory("keystone"), free_port()
    shutil.copytree(kept, data / "home")
    url = f"http://127.0.0.1:{port}/v3"
    return KeystoneServer(
        url=url,
        data=data,
        processes=(
            Process(
                [KEYSTONE.program("python"), str(_NODE), "serve", str(data / "home"), str(port)],
                log=data / "log",
                env={**os.environ, "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"},
            ),
        ),
        ready=lambda: answers(url),
    ).start()


def keystone_directory() -> Path:
    """The new cloud's directory; it is made where there is none, by one process at a time."""
    python = KEYSTONE.program("python")
    kept = KEYSTONE.home.with_name(f"{KEYSTONE.home.name}-cloud")
    with kept.with_name(f"{kept.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            draft = kept.with_name(f"{kept.name}.{time.time_ns()}")
            command = [python, str(_NODE), "make", str(draft)]
            made = run_program(command)
            if made.returncode != 0:
                shutil.rmtree(draft, ignore_errors=True)
                missing("a Keystone", f"its database could not be made:\n{made.stderr[-2000:]}")
            draft.rename(kept)
    return kept
