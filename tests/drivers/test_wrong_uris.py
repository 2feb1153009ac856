"""What can never work is refused when the stores are made, and it is told why."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.process import run_program
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.registry import create_stores

SWIFT = "swift+http://a:b@host/auth/v1.0"
LOCKS = {"coordination_url": "file:///tmp/x"}


@pytest.mark.parametrize(
    ("uri", "options", "said"),
    [
        ("foo:///{}/x", {}, "'foo'"),
        ("{}/x", {}, "scheme ''"),
        ("http://[", {}, "IPv6"),
        *((f"memory://{more}", {}, "memory://") for more in ("host", "/path", "?a=b", "#x")),
        ("embedded://[", {}, "IPv6"),
        *((f"embedded:{path}", {}, "Name a directory") for path in ("//host{}", "", "///")),
        ("embedded://{}/x%00", {}, "null"),
        ("embedded://{}/" + "x" * 256, {}, "too long"),
        ("opendata+foo:///{}/x", {}, "'opendata[+]foo'"),
        ("opendata+s3://[", {}, "IPv6"),
        ("opendata+slatedb://{}/x%00", {}, "null"),
        ("opendata+slatedb://{}/" + "x" * 256, {}, "too long"),
        ("redis://h:nonsense", {}, "port"),
        ("redis://h/zero", {}, "database"),
        ("redis+cluster://h/1", {}, "cluster"),
        ("redis+sentinel://h:1,h:2", {}, "service"),
        ("unix://", {}, "socket"),
        ("redis://h?timeout=never", {}, "timeout"),
        ("redis://h?retries=3", {}, "retries"),
        ("redis://user@h", {}, "password"),
        ("rediss://h?ssl_ca_certs=/nowhere", {}, "certificates"),
        ("mongodb://h/?w=0", {}, "w=majority"),
        ("mongodb://h", {"databse": "x"}, "database, collection_prefix, create_indexes"),
        ("mongodb://h", {"database": 5}, "must be a str"),
        ("mongodb://h", {"create_indexes": "no"}, "must be a bool"),
        ("swift+http://host/auth/v1.0", {}, "USER:KEY"),
        (f"{SWIFT}?prefx=1", {}, "prefx"),
        (f"{SWIFT}?prefix=a/b", {}, "prefix"),
        (f"{SWIFT}?timeout=x", {}, "timeout"),
        (f"{SWIFT}?connections=0", {}, "connections"),
        (f"{SWIFT}?prefix={'x' * 33}", {}, "prefix"),
        (f"{SWIFT}?lease=39", LOCKS, "four times"),
        (f"{SWIFT}?timeout=1&lease=4", LOCKS, "four times"),
        (SWIFT, {"coordination_url": "redis://h?lock_timeout=5"}, "four times"),
        ("swift+https://host/?cloud=x", {}, "without a host"),
        ("swift+https:///?cloud=no-such-cloud", {}, "no-such-cloud"),
    ],
)
def test_a_wrong_uri_is_refused(
    uri: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        create_stores(uri.format(tmp_path), clock=Clock(), options=StoreOptions(extra=options))


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("connections=1&prefix=x", {}),
        (f"timeout=999999&prefix={'x' * 32}", {}),
        ("lease=40", LOCKS),
        ("timeout=1&lease=5", LOCKS),
    ],
)
def test_swifts_options_are_taken_up_to_their_bounds(query: str, options: dict[str, Any]) -> None:
    create_stores(f"{SWIFT}?{query}", clock=Clock(), options=StoreOptions(extra=options))


def test_several_workers_need_a_coordination_url() -> None:
    with pytest.raises(ConfigurationError, match="coordination_url"):
        create_stores(SWIFT, clock=Clock(), options=StoreOptions(workers=2))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "uri", ["mongodb://", "mongodb://h/?w=majority&readPreference=none", "mongodb://h:port"]
)
async def test_a_uri_that_pymongo_refuses_is_told_when_it_opens(uri: str) -> None:
    store, _ = create_stores(uri, clock=Clock(), options=StoreOptions())
    with pytest.raises(ConfigurationError, match="URI"):
        await store.open()


def test_the_default_store_needs_no_extra(tmp_path: Path) -> None:
    """SlateDB is an extra; its library is not even loaded for a store on SQLite."""
    program = (
        "import sys; sys.modules['slatedb'] = None\n"
        "from zaqar_lite.domain.clock import Clock\n"
        "from zaqar_lite.domain.models import StoreOptions\n"
        "from zaqar_lite.storage.registry import create_stores\n"
        "create_stores(sys.argv[1], clock=Clock(), options=StoreOptions())"
    )
    for scheme, code in (("embedded", 0), ("opendata+slatedb", 1)):
        command = [sys.executable, "-c", program, f"{scheme}://{tmp_path / scheme}"]
        done = run_program(command)
        assert done.returncode == code, done.stderr
    assert "pip install 'zaqar-lite[slatedb]'" in done.stderr
