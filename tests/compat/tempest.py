"""Run tempest plugins against a server, with the stand-in of Keystone."""

import os
import sys
import uuid
from pathlib import Path

from tests.keystone import Keystone, User
from tests.services.process import run_program

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
USERS = 4
_ACCOUNTS = "".join(
    f"- username: user{n}\n  project_name: {{run}}-{n}\n  password: secret\n"
    "  domain_name: Default\n  roles:\n  - member\n"
    for n in range(USERS)
)
_STESTR = "[DEFAULT]\ntest_path={tests}\ntop_dir={top}\ngroup_regex=([^\\.]*\\.)*\n"


class Tempest:
    """A tempest workspace, for a server that asks a Keystone.

    A test that sleeps for a minute or more moves the server's clock by the file `clock` instead.
    """

    def __init__(self, keystone: Keystone, home: Path, clock: Path) -> None:
        self._home = home
        self._clock = clock
        self._keystone = keystone
        etc = self._home / "etc"
        etc.mkdir()
        (etc / "tempest.conf").write_text(_CONF.format(home=self._home, identity=keystone.url))
        tests = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        (self._home / ".stestr.conf").write_text(
            _STESTR.format(tests=tests / "tempest" / "test_discover", top=tests)
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run `tempest`, in projects of its own; answer its exit code and what it printed."""
        name = uuid.uuid4().hex
        (self._home / "accounts.yaml").write_text(_ACCOUNTS.format(run=name))
        for number in range(USERS):
            user = User("secret", f"{name}-{number}")
            self._keystone.state.users[f"user{number}"] = user
        finished = run_program(
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
        )
        return finished.returncode, finished.stdout + finished.stderr
