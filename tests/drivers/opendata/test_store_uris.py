"""The URI of a store, as `serve` reads it: one line says what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.registry import create_stores

WRONG = {
    "other scheme": "redis:///{}/x",
    "unknown scheme": "foo:///{}/x",
    "unknown engine": "opendata+foo:///{}/x",
    "no scheme": "{}/x",
    "no address": "http://[",
    "no address of ours": "embedded://[",
    "no bucket": "opendata+s3://[",
    "NUL": "embedded://{}/x%00",
    "NUL in SlateDB": "opendata+slatedb://{}/x%00",
    "long name": "embedded://{}/" + "x" * 256,
    "long name in SlateDB": "opendata+slatedb://{}/" + "x" * 256,
}


@pytest.mark.parametrize("name", sorted(WRONG.keys() - {"other scheme"}))
def test_no_driver_is_made_of_a_wrong_uri(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        create_stores(WRONG[name].format(tmp_path), clock=Clock(), options=StoreOptions())


@pytest.mark.parametrize("uri", ["http://[", "embedded:///x%00"])
def test_a_server_refuses_a_wrong_uri_in_one_line(uri: str) -> None:
    command = [sys.executable, "-m", "zaqar_lite.cli", "serve", "--port", "0", "--store", uri]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1  # it can never work, as the settings are
    assert done.stderr.startswith("zaqar-lite: ")
    assert done.stderr.count("\n") == 1


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
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
    assert "pip install 'zaqar-lite[slatedb]'" in done.stderr
