"""Fixtures: the real servers, each started when the first test asks for it.

What takes long to start, and has a place of its own for each test, is there once for all workers.
"""

import gc
import os
import signal
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests import scheduling, services
from tests.limits import (  # noqa: F401 - hooks of pytest
    mark_longer,
    pytest_fixture_setup,
    pytest_runtest_call,
    pytest_runtest_logfinish,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
)
from tests.server import ServerProcess

# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# In a script's background SIGINT is ignored, and programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_httpx: Any = import_module("httpx._transports.default")
_make_context = _httpx.create_ssl_context
_default_context: ssl.SSLContext = _make_context()


def _shared_context(verify: object = True, **options: Any) -> ssl.SSLContext:
    """Read the system's certificates once, not for each of thousands of clients (50 ms of CPU)."""
    if verify is True and options.get("cert") is None:
        return _default_context
    made: ssl.SSLContext = _make_context(verify=verify, **options)
    return made


_httpx.create_ssl_context = _shared_context

S = TypeVar("S", bound=services.Service)


def _given_or_started(
    variable: str, describe: Callable[[str], S], start: Callable[[], AbstractContextManager[S]]
) -> Iterator[S]:
    """Use the server whose URL is in the environment, else start one for the session."""
    url = os.environ.get(variable)
    with describe(url) if url else start() as service:
        yield service


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory that the workers of a run have together."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def redis_server() -> Iterator[services.RedisServer]:
    """A Redis server for the session (ZAQAR_TEST_REDIS_URL); it keeps nothing over a restart."""
    yield from _given_or_started("ZAQAR_TEST_REDIS_URL", services.redis_from, services.start_redis)


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[services.RedisSentinel]:
    """A Redis master with a replica and three sentinels."""
    with services.start_redis_sentinel(appendfsync="always") as service:
        yield service


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[services.RedisCluster]:
    """A Redis cluster of three masters without replicas."""
    with services.start_redis_cluster() as service:
        yield service


@pytest.fixture(scope="session")
def mongodb_server() -> Iterator[services.MongoServer]:
    """A server that speaks MongoDB's protocol (ZAQAR_TEST_MONGODB_URL)."""
    yield from _given_or_started(
        "ZAQAR_TEST_MONGODB_URL", services.mongo_from, services.start_mongo
    )


@pytest.fixture(scope="session")
def swift_server(run_folder: Path) -> Iterator[services.SwiftServer]:
    """A Swift node of the run (ZAQAR_TEST_SWIFT_URL, as http://USER:KEY@HOST:PORT/auth/v1.0)."""
    start = partial(services.shared, "swift", services.start_swift, run_folder)
    yield from _given_or_started("ZAQAR_TEST_SWIFT_URL", services.swift_from, start)


@pytest.fixture(scope="session")
def keystone_server(run_folder: Path) -> Iterator[services.KeystoneServer]:
    """A Keystone of a new cloud, for the run."""
    with services.shared("keystone", services.start_keystone, run_folder) as service:
        yield service


@pytest.fixture(scope="session")
def rabbitmq_server(run_folder: Path) -> Iterator[services.RabbitServer]:
    """A RabbitMQ broker of the run, with the management plugin (ZAQAR_TEST_RABBITMQ_URL)."""
    start = partial(services.shared, "rabbitmq", services.start_rabbit, run_folder)
    yield from _given_or_started("ZAQAR_TEST_RABBITMQ_URL", services.rabbit_from, start)


@pytest.fixture(scope="session")
def s3_server(run_folder: Path) -> Iterator[services.S3Server]:
    """An S3 server of the run, in memory (ZAQAR_TEST_S3_URL)."""
    start = partial(services.shared, "s3", services.start_s3, run_folder)
    yield from _given_or_started("ZAQAR_TEST_S3_URL", services.s3_from, start)


@pytest.fixture(scope="session")
def hdfs_server(run_folder: Path) -> Iterator[services.Service]:
    """An HDFS of the run (ZAQAR_TEST_HDFS_URL, as hdfs://NAMENODE:PORT); with --all only."""
    if "ZAQAR_TEST_ALL" not in os.environ:
        pytest.skip("Hadoop takes long to start: tests/run --all")
    start = partial(services.shared, "hdfs", services.start_hdfs, run_folder)
    yield from _given_or_started("ZAQAR_TEST_HDFS_URL", services.hdfs_from, start)


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Collect garbage when a module ends: what it left open fails there, not in a later module."""
    yield
    gc.collect()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give long tests their limits; let a parallel run begin with the longest files."""
    mark_longer(items)
    if hasattr(config, "workerinput"):
        scheduling.sort_items(items)


def pytest_collection_finish() -> None:
    """Set aside what collecting made: the collections of garbage need not go through it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep the order of the collected tests, and a folder that shares a server together."""
    return scheduling.make_scheduler(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what is no Unicode in a report: xdist cannot send it, and would end the run."""
    report = yield
    report.sections = [(name, _printable(text)) for name, text in report.sections]
    if isinstance(report.longrepr, str):
        report.longrepr = _printable(report.longrepr)
    elif report.longrepr is not None and (text := str(report.longrepr)) != _printable(text):
        report.longrepr = _printable(text)
    return report


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds of each folder, and the longest files, for `scheduling.LONGEST`."""
    found = [entry for kind in terminalreporter.stats.values() for entry in kind]
    reports = [entry for entry in found if isinstance(entry, pytest.TestReport)]
    for title, place, most in (
        ("folders", scheduling.folder_of, 100),
        ("longest files", scheduling.file_of, 10),
    ):
        terminalreporter.section(title)
        for name, seconds, tests in scheduling.longest(reports, place, most):
            terminalreporter.line(f"{seconds:8.1f}s {tests:5} tests  {name}")


def pytest_report_header() -> str:
    """Say which of the servers that may be one or another the tests use."""
    return f"MongoDB's protocol: {services.describe_mongo()}"


class StartServer(Protocol):
    """The type of the `server_process` fixture."""

    def __call__(
        self, store: str = "memory://", *options: str, env: Mapping[str, str] | None = None
    ) -> ServerProcess:
        """Start our server and wait until it answers."""


@pytest.fixture
def server_process() -> Iterator[StartServer]:
    """A function that starts our own server as a process; all end with the test."""
    started: list[ServerProcess] = []

    def start(
        store: str = "memory://", *options: str, env: Mapping[str, str] | None = None
    ) -> ServerProcess:
        server = ServerProcess(store, *options, env=env)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on asyncio only."""
    return "asyncio"
