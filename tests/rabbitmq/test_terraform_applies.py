"""The Terraform module and its examples on a real broker, by the provider that they name."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

from tests.rabbitmq.conftest import Host
from tests.rabbitmq.test_commands import delay
from tests.rabbitmq.test_terraform import MODULE, needs_terraform, run
from tests.services.terraform import rabbitmq_provider
from zaqar_lite.rabbitmq import exports
from zaqar_lite.rabbitmq.topology import Topology

pytestmark = [
    pytest.mark.anyio,
    needs_terraform,
    pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="minutes: tests/run --all"),
]
OLD, GROWN = Topology(4), Topology(6, draining_bits=4)


def begin(place: Path) -> None:
    run(place, "init", "-input=false", f"-plugin-dir={rabbitmq_provider()}")
    run(place, "validate", "-no-color")


def apply(place: Path) -> None:
    """Apply; the plan after it must be empty."""
    run(place, "apply", "-auto-approve", "-input=false", "-no-color")
    run(place, "plan", "-detailed-exitcode", "-input=false", "-no-color")  # 0: nothing to change


def refused(place: Path, *words: str) -> str:
    with pytest.raises(AssertionError) as refusal:
        run(place, *words, "-input=false", "-no-color")
    return " ".join(str(refusal.value).replace("│", " ").split())


def verified(host: Host, topology: Topology) -> bool:
    words = ["--management-url", host.management_url, "--vhost", host.name]
    draining = topology.draining_bits
    words += ["--draining-bits", str(draining)] if draining else []
    return delay("verify", "--bits", str(topology.bits), *words) == 0


@pytest.fixture
def place(host: Host, tmp_path: Path) -> Path:
    """The exported module, with this broker's provider."""
    exports.write_terraform(tmp_path, OLD)
    parts = urlsplit(host.management_url)
    provider = {
        "endpoint": f"http://{parts.hostname}:{parts.port}",
        "username": parts.username,
        "password": parts.password,
    }
    (tmp_path / "provider.tf.json").write_text(json.dumps({"provider": {"rabbitmq": provider}}))
    begin(tmp_path)
    return tmp_path


def choose(place: Path, host: Host, topology: Topology, **more: object) -> None:
    chosen = {**exports.terraform_variables(topology), "vhost": host.name, **more}
    (place / exports.TERRAFORM_VARIABLES).write_text(json.dumps(chosen))


def test_terraform_refuses_what_would_lose_messages(host: Host, place: Path) -> None:
    choose(place, host, OLD)
    apply(place)
    assert "prevent_destroy" in refused(place, "destroy", "-auto-approve")
    for change in ({"unit_ms": 500}, {"queue_type": "classic"}, {"max_delay_seconds": 7}):
        choose(place, host, OLD, **change)
        assert "prevent_destroy" in refused(place, "plan")
    choose(place, host, OLD, max_delay_seconds=540_000_000)
    assert "30 bits of 1000 ms need a queue" in refused(place, "apply", "-auto-approve")
    assert verified(host, OLD)


@pytest.fixture
def users(host: Host) -> Iterator[dict[str, str]]:
    """The users that the example expects, `admin` with no more rights than it needs."""
    passwords = {name: os.urandom(8).hex() for name in ("admin", "orders", "relay")}
    for name, password in passwords.items():
        tags = "administrator" if name == "admin" else ""
        host.put(f"users/{name}", {"password": password, "tags": tags})
    own = dict.fromkeys(("configure", "write", "read"), r"^delay\.")
    host.put(f"permissions/{quote(host.name, safe='')}/admin", own)
    yield passwords
    for name in passwords:
        httpx.delete(f"{host.management_url}/api/users/{name}").raise_for_status()


@pytest.mark.parametrize("example", ["one-day", "growing"])
def test_the_examples_run_as_they_are(
    host: Host,
    users: dict[str, str],
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(MODULE, tmp_path / "module")
    place = tmp_path / "module" / "examples" / example
    begin(place)
    # Terraform lays this over the example: somebody may use the virtual host that it names.
    override = {"module": {"delay": {"vhost": host.name}}}
    (place / "override.tf.json").write_text(json.dumps(override))
    parts = urlsplit(host.management_url)
    endpoint = f"http://{parts.hostname}:{parts.port}"
    for name in ("TF_VAR_management_url", "RABBITMQ_ENDPOINT"):
        monkeypatch.setenv(name, endpoint)
    for name in ("TF_VAR_password", "RABBITMQ_PASSWORD"):
        monkeypatch.setenv(name, users["admin"])
    monkeypatch.setenv("RABBITMQ_USERNAME", "admin")
    apply(place)
    if example == "one-day":
        assert verified(host, Topology(17))
        found = httpx.get(f"{host.management_url}/api/permissions").raise_for_status().json()
        rights = {one["user"]: one["write"] for one in found if one["vhost"] == host.name}
        assert rights["orders"] == r"^delay\.ingest$"
        assert rights["relay"] == r"^amq\.default$"
