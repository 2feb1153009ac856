"""One Spark session and one server for the whole run."""

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.client.conftest import MovableServer
from tests.proxy import Proxy
from tests.server import ServerProcess
from tests.services.process import Service, missing
from tests.services.s3 import S3Server
from zaqar_lite.client import Client
from zaqar_lite.spark import register
from zaqar_lite.spark.session import session

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
# Spark's Python processes have the environment that its JVM was started in.
os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
SETTINGS = {
    "ZAQAR_LITE_MAX_MESSAGES_PER_PAGE": "1000",
    "ZAQAR_LITE_MAX_MESSAGES_PER_CLAIM_OR_POP": "1000",
}


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> Iterator[None]:
    """Keep Spark's loggers from changing the format of handlers that are given to them.

    pytest adds the handler of `caplog` to every logger that does not propagate. Spark makes such
    loggers when a query fails, and they would turn all later logs of the run into JSON.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield


def environment(code: Path) -> dict[str, str]:
    """The variables for another Spark, without those that this session's JVM has set."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    return {**own, "PYTHONPATH": str(code)}


def patient(run: Callable[[], T]) -> T:
    """Do a stream's work, and again where a busy machine ended it, as operators do.

    Spark waits ten seconds for a Python process to start, and no setting changes that.
    """
    while True:
        try:
            return run()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise


def finished(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query to its end."""

    def run() -> StreamingQuery:
        query = start()
        query.awaitTermination()
        return query

    return patient(run)


def in_bucket(server: S3Server) -> str:
    """Make a bucket, and return a place in it as Spark names it."""
    name = f"ledger-{uuid.uuid4().hex}"
    server.make_bucket(name)
    where = {
        "endpoint_override": server.url.removeprefix("http://"),
        "scheme": "http",
        "region": server.region,
    }
    return f"s3a://{name}/streams/orders?{urlencode(where)}"


def in_hdfs(server: Service) -> str:
    """Return a place in HDFS as Spark names it."""
    return f"{server.url}/streams/orders-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, in which a task is tried twice."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        missing("Java", "apt-get install openjdk-17-jre-headless (tests/run does it as root)")
    os.environ["PYTHONPATH"] = str(ROOT)  # the workers import the functions of the tests
    place = tmp_path_factory.mktemp("spark")
    java = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dderby.system.home={place / 'derby'}"
    made = session(
        "local[2,2]",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(place / "local"),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.sql.artifact.root": str(place / "artifacts"),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": java,
        },
    )
    made.sparkContext.setLogLevel("OFF")
    register(made)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("memory://", env=SETTINGS) as running:
        yield running


@pytest.fixture
def movable(tmp_path: Path) -> Iterator[MovableServer]:
    """A server whose clock the test moves."""
    offset = tmp_path / "offset"
    env = {**SETTINGS, "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset)}
    with ServerProcess("memory://", env=env) as process:
        yield MovableServer(process, offset)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, page_size=1000) as made:
        yield made


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(server.url) as running:
        yield running


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex}"
