"""A Swift node in one command: configuration, rings, servers, daemons, until one of them ends.

It runs inside Swift's own environment and needs nothing but Swift: the tests start it as a process,
and docker-compose's `swift` profile runs it in a container. One device, one replica; tempauth with
the user test:tester and the key testing. An expired object leaves its listing in about 6 s.
"""

import argparse
import getpass
import importlib
import json
import runpy
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

KINDS = ("object", "container", "account")
# The updaters bring an object's deadline to the account that the expirer reads.
DAEMONS = (
    ("swift.obj.expirer", "expirer"),
    ("swift.obj.updater", "object"),
    ("swift.container.updater", "container"),
)
PIPELINE = (
    "catch_errors gatekeeper healthcheck proxy-logging cache listing_formats bulk tempurl "
    "tempauth copy slo dlo versioned_writes symlink proxy-logging proxy-server"
)
# A proxy leaves out a node that did not take a connection within half a second, and after ten such
# for a minute: on a busy machine the only node there is, and all is 503.
PATIENCE = "conn_timeout = 30\nnode_timeout = 60\n"
FILTERS = """
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
request_node_count = 1
error_suppression_interval = 0
error_suppression_limit = 1000000
[filter:cache]
paste.filter_factory = swift_node:cache_filter
[filter:tempauth]
use = egg:swift#tempauth
token_life = 86400
user_admin_admin = admin .admin .reseller_admin
user_test_tester = testing .admin
user_test2_tester2 = testing2 .admin
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_versioned_writes = true
allow_object_versioning = true
[filter:proxy-logging]
use = egg:swift#proxy_logging
""" + "".join(
    f"[filter:{name}]\nuse = egg:swift#{name}\n"
    for name in (
        *("catch_errors", "gatekeeper", "healthcheck", "listing_formats", "bulk", "tempurl"),
        *("copy", "slo", "dlo", "symlink"),
    )
)


def main() -> int:
    """Run the node in the foreground; SIGTERM ends it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--bind", default="127.0.0.1", help="address of the proxy")
    parser.add_argument("--port", type=int, default=8080, help="port of the proxy")
    parser.add_argument(
        "--backend-ports", type=int, nargs=3, default=[6200, 6201, 6202], metavar="PORT"
    )
    arguments = parser.parse_args()
    configure(arguments.data, arguments.bind, arguments.port, arguments.backend_ports)
    build_rings(arguments.data / "etc", arguments.backend_ports)
    return supervise(arguments.data / "etc")


def configure(data: Path, bind: str, port: int, backend_ports: list[int]) -> None:
    """Write every configuration file; the hash secrets of an earlier start are kept."""
    etc = data / "etc"
    for folder in (etc, data / "nodes" / "d1", data / "cache"):
        folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, text: str) -> None:
        (etc / name).write_text(text, encoding="utf-8")

    def defaults(address: str, number: int) -> str:
        return (
            f"[DEFAULT]\nbind_ip = {address}\nbind_port = {number}\n"
            f"workers = 0\nuser = {getpass.getuser()}\nswift_dir = {etc}\n"
            f"devices = {data}/nodes\nmount_check = false\n"
            f"disable_fallocate = true\nfallocate_reserve = 0\n"
            f"log_level = WARNING\nlog_requests = false\nrecon_cache_path = {data}/cache\n"
            f"{PATIENCE}"
        )

    if not (etc / "swift.conf").exists():
        # These secrets decide where an object lies: with others it would never be found again.
        write(
            "swift.conf",
            f"[swift-hash]\nswift_hash_path_prefix = {secrets.token_hex(8)}\n"
            f"swift_hash_path_suffix = {secrets.token_hex(8)}\n"
            "[storage-policy:0]\nname = one\ndefault = yes\n",
        )
    for kind, number in zip(KINDS, backend_ports, strict=True):
        write(
            f"{kind}.conf",
            f"{defaults('127.0.0.1', number)}"
            f"[pipeline:main]\npipeline = healthcheck {kind}-server\n"
            f"[app:{kind}-server]\nuse = egg:swift#{kind}\n"
            "[filter:healthcheck]\nuse = egg:swift#healthcheck\n"
            f"[{kind}-updater]\ninterval = 4\naccount_suppression_time = 0\n"
            "containers_per_second = 0\n",
        )
    write("proxy.conf", f"{defaults(bind, port)}[pipeline:main]\npipeline = {PIPELINE}\n{FILTERS}")
    write(
        "expirer.conf",
        f"{defaults('127.0.0.1', 0)}"
        # Each pass lists some two hundred containers: once a second it was a quarter of CI's time.
        "[object-expirer]\ninterval = 5\ntasks_per_second = 500\nconcurrency = 4\n"
        f"[pipeline:main]\npipeline = catch_errors cache proxy-server\n{FILTERS}",
    )


def build_rings(etc: Path, ports: list[int]) -> None:
    """Write the rings of one device and one replica: object, container, account."""
    ring_builder = importlib.import_module("swift.common.ring").RingBuilder
    for kind, port in zip(KINDS, ports, strict=True):
        ring = ring_builder(part_power=4, replicas=1, min_part_hours=0)
        place = {"ip": "127.0.0.1", "port": port, "device": "d1", "weight": 1.0, "meta": ""}
        replication = {"replication_ip": "127.0.0.1", "replication_port": port}
        ring.add_dev({"region": 1, "zone": 1, **place, **replication})
        ring.rebalance()
        ring.get_ring().save(f"{etc}/{kind}.ring.gz")


def supervise(etc: Path) -> int:
    """Run servers and daemons until one ends or SIGTERM comes; then end them all."""
    programs = Path(sys.executable).parent
    # -v keeps the log on standard error; without it Swift writes to syslog
    run = [sys.executable, __file__]
    commands = [
        [*run, "server", str(programs / f"swift-{kind}-server"), f"{etc}/{kind}.conf", "-v"]
        for kind in (*KINDS, "proxy")
    ] + [
        [*run, "daemon", str(etc), module, f"{etc}/{configuration}.conf", "-v"]
        for module, configuration in DAEMONS
    ]
    signal.signal(signal.SIGTERM, _end)
    children: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            children.append(subprocess.Popen(command))  # noqa: PERF401 - a failure ends the others
        while all(child.poll() is None for child in children):
            time.sleep(0.2)
        return 1
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def gather_expiring() -> None:
    """Let a day's deadlines be in one hidden container, where Swift has a hundred of them.

    All processes of a node must agree. The expirer lists each of them in every pass, which for
    this little node was a quarter of all that it did.
    """
    vars(importlib.import_module("swift.obj.expirer"))["EXPIRER_CONTAINER_PER_DIVISOR"] = 1


def run_server(program: str, *words: str) -> None:
    """Run one of Swift's servers, a script that it installed."""
    gather_expiring()
    sys.argv[:] = [program, *words]
    runpy.run_path(program, run_name="__main__")


def skip_unchanged_containers() -> None:
    """Let the container updater open only the databases that changed since it last did.

    A pass starts a process for each partition and opens every container. Every four seconds, with
    the hundreds of containers that the tests leave, that was half of a core.
    """
    updater = importlib.import_module("swift.container.updater").ContainerUpdater
    process_container = updater.process_container
    unchanged: dict[str, int] = {}

    def process_changed(self: Any, path: str) -> None:
        changed = Path(path).stat().st_mtime_ns
        pending = Path(f"{path}.pending")
        waits = pending.exists() and pending.stat().st_size > 0
        if not waits and unchanged.get(path) == changed:
            return
        failures = self.failures
        process_container(self, path)
        # What waits is merged into the database, and what failed is tried again: look once more.
        if not waits and self.failures == failures:
            unchanged[path] = changed

    def run_forever(self: Any, **_: object) -> None:
        while True:
            self.run_once()
            time.sleep(self.interval)

    updater.process_container = process_changed
    updater.run_forever = run_forever


def skip_empty_passes() -> None:
    """Let the object updater start its process only when an update waits."""
    updater = importlib.import_module("swift.obj.updater").ObjectUpdater
    run_once = updater.run_once

    def run_when_needed(self: Any, **options: object) -> float:
        if not any(path.is_file() for path in Path(self.devices).glob("*/async_pending*/**/*")):
            return 0.0
        elapsed: float = run_once(self, **options)
        return elapsed

    updater.run_once = run_when_needed


def run_daemon(etc: str, module: str, *words: str) -> None:
    """Run a daemon on our configuration: daemons ignore the swift_dir of their own file."""
    importlib.import_module("swift.common.utils").set_swift_dir(etc)
    gather_expiring()
    skip_unchanged_containers()
    skip_empty_passes()
    sys.argv[:] = [module, *words]
    importlib.import_module(module).main()


class Cache:
    """What the proxy and tempauth ask of a memcached, for one process."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, str]] = {}

    def set(self, key: str, value: object, *_: object, time: float = 0, **__: object) -> None:
        """Keep a value for `time` seconds; 0 keeps it for good."""
        self._entries[key] = (_deadline(time), json.dumps(value))

    def get(self, key: str, *_: object, **__: object) -> Any:
        """Return the value, or None once it has expired."""
        end, text = self._entries.get(key, (0.0, ""))
        if end <= time.time():
            self._entries.pop(key, None)
            return None
        return json.loads(text)

    def incr(self, key: str, delta: int = 1, time: float = 0) -> int:
        """Add to a counter that never falls below 0."""
        value = max(0, int(self.get(key) or 0) + int(delta))
        self.set(key, value, time=time)
        return value

    def decr(self, key: str, delta: int = 1, time: float = 0) -> int:
        """Subtract from a counter."""
        return self.incr(key, -int(delta), time)

    def delete(self, key: str, *_: object) -> None:
        """Forget a value."""
        self._entries.pop(key, None)

    def set_multi(
        self, mapping: dict[str, object], *_: object, time: float = 0, **__: object
    ) -> None:
        """Keep several values."""
        for key, value in mapping.items():
            self.set(key, value, time=time)

    def get_multi(self, keys: Iterable[str], *_: object) -> list[Any]:
        """Return the value of each key."""
        return [self.get(key) for key in keys]


def _deadline(seconds: float) -> float:
    return time.time() + seconds if seconds else float("inf")


def cache_filter(_: dict[str, str], **__: str) -> Callable[[App], App]:
    """Make the paste filter that puts the cache where Swift's middleware looks for it."""
    cache = Cache()

    def wrap(app: App) -> App:
        def with_cache(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            environ["swift.cache"] = cache
            return app(environ, start)

        return with_cache

    return wrap


if __name__ == "__main__":
    if sys.argv[1:2] == ["daemon"]:
        run_daemon(*sys.argv[2:])
    elif sys.argv[1:2] == ["server"]:
        run_server(*sys.argv[2:])
    else:
        sys.exit(main())
