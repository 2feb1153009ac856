"""Run tempest plugins against a server, through the identity stand-in."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

from tests.services.process import Process, free_port, wait_until

_CONF = """
[DEFAULT]
log_file = tempest.log
[auth]
use_dynamic_credentials = false
test_accounts_file = {home}/accounts.yaml
default_credentials_domain_name = Default
[identity]
uri_v3 = {identity}/v3
auth_version = v3
region = here
disable_ssl_certificate_validation = true
[identity-feature-enabled]
api_v2 = false
api_v3 = true
[service_available]
zaqar = true
zaqar_lite = true
nova = false
neutron = false
glance = false
cinder = false
swift = false
[messaging]
catalog_type = messaging
[oslo_concurrency]
lock_path = {home}/locks
"""
_ACCOUNTS = "".join(
    f"- username: user{n}\n  project_name: {{run}}-{n}\n  password: secret\n"
    "  domain_name: Default\n  roles:\n  - member\n"
    for n in range(4)
)
_STESTR = "[DEFAULT]\ntest_path={tests}\ntop_dir={top}\ngroup_regex=([^\\.]*\\.)*\n"


class Tempest:
    """A tempest workspace and its identity stand-in; a context manager.

    A test that sleeps for a minute or more moves the server's clock by the file `clock` instead.
    """

    def __init__(self, server: str, home: Path, clock: Path) -> None:
        self._home = home
        self._clock = clock
        port = free_port()
        self._identity = f"http://127.0.0.1:{port}"
        self._process = Process(
            [sys.executable, "-m", "tests.compat.identity", str(port), server],
            log=home / "identity.log",
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> "Tempest":
        self._process.start()
        wait_until(self._answers, [self._process])
        etc = self._home / "etc"
        etc.mkdir()
        (etc / "tempest.conf").write_text(_CONF.format(home=self._home, identity=self._identity))
        tests = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        (self._home / ".stestr.conf").write_text(
            _STESTR.format(tests=tests / "tempest" / "test_discover", top=tests)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run `tempest`, in projects of its own; answer its exit code and what it printed."""
        (self._home / "accounts.yaml").write_text(_ACCOUNTS.format(run=uuid.uuid4().hex))
        finished = subprocess.run(
            [str(Path(sys.executable).with_name("tempest")), *arguments],
            cwd=self._home,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "TEMPEST_CONFIG_DIR": str(self._home / "etc"),
                "PYTHONPATH": str(Path(__file__).parent / "clock"),
                "ZAQAR_TEST_CLOCK": str(self._clock),
                "PYTHONWARNINGS": "ignore",
            },
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        return finished.returncode, finished.stdout + finished.stderr

    def _answers(self) -> bool:
        import httpx  # noqa: PLC0415 - only here

        try:
            return httpx.get(f"{self._identity}/v3").status_code == 200
        except httpx.TransportError:
            return False
