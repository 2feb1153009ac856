"""Programs that the tests start, each installed as its language does, beside our own environment.

Python's live in virtual environments of their own: their pins (eventlet, botocore, an exact
pymongo) would otherwise decide the versions that the tests run our own code with. Maven fetches
jars, npm packages of Node, and Go builds a program from the sources of the tests.
"""

import fcntl
import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.services.process import find_program, missing, run_program, skip_in_quick_run

ROOT = Path(__file__).parents[2] / ".cache" / "services"


@dataclass(frozen=True)
class Environment:
    """One program from PyPI."""

    package: str
    version: str
    extras: str = ""
    beside: tuple[str, ...] = ()
    """What the environment has besides."""
    is_rare: bool = False
    """Only `tests/run --all` needs it."""

    @property
    def home(self) -> Path:
        """The virtual environment's directory."""
        return ROOT / f"{self.package}-{self.version}"

    def program(self, name: str) -> str:
        """Find a program of the environment; install the environment first where it is missing."""
        self.install()
        return str(self.home / "bin" / name)

    def install(self) -> None:
        """Install the environment unless it is there; one process at a time does it."""
        skip_in_quick_run()
        done = self.home / ".installed"
        if done.exists():
            return
        ROOT.mkdir(parents=True, exist_ok=True)
        with self.home.with_name(f"{self.home.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                self._install()
                done.touch()

    def _install(self) -> None:
        for command in self._commands():
            result = run_program(command)
            if result.returncode != 0:
                words = (result.stdout + result.stderr)[-2000:]
                missing(f"{self.package} {self.version}", f"it could not be installed:\n{words}")

    def _commands(self) -> list[list[str]]:
        requirement = f"{self.package}{self.extras}=={self.version}"
        python = str(self.home / "bin" / "python")
        uv = shutil.which("uv")
        if uv:
            return [
                [uv, "venv", "--clear", "--python", sys.executable, str(self.home)],
                [uv, "pip", "install", "--python", python, requirement, *self.beside],
            ]
        return [
            [sys.executable, "-m", "venv", "--clear", str(self.home)],
            [python, "-m", "pip", "install", "--quiet", requirement, *self.beside],
        ]


@dataclass(frozen=True)
class Jar(Environment):
    """One server program of Java's, with all that it needs in one jar."""

    group: str = ""

    @property
    def path(self) -> str:
        """The jar; it is fetched first where it is missing."""
        self.install()
        return str(self.home / f"{self.package}-{self.version}.jar")

    def _commands(self) -> list[list[str]]:
        artifact = f"{self.group}:{self.package}:{self.version}"
        maven = find_program("mvn", "maven")
        copy = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
        return [
            [maven, "-q", "-B", copy, f"-Dartifact={artifact}", f"-DoutputDirectory={self.home}"]
        ]


@dataclass(frozen=True)
class Jars(Environment):
    """One artifact of Maven's and all that it depends on."""

    group: str = ""

    @property
    def classpath(self) -> str:
        """What Java's option -cp takes; the jars are fetched first where they are missing."""
        self.install()
        return str(self.home / "*")

    def _commands(self) -> list[list[str]]:
        maven = find_program("mvn", "maven")
        self.home.mkdir(parents=True, exist_ok=True)
        project = self.home / "pom.xml"
        project.write_text(
            "<project><modelVersion>4.0.0</modelVersion>"
            "<groupId>tests</groupId><artifactId>jars</artifactId><version>1</version>"
            "<packaging>pom</packaging><dependencies><dependency>"
            f"<groupId>{self.group}</groupId><artifactId>{self.package}</artifactId>"
            f"<version>{self.version}</version></dependency></dependencies></project>"
        )
        copy = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={self.home}"]
        return [[maven, "-q", "-B", "-f", str(project), copy, *options]]


@dataclass(frozen=True)
class NodePackages(Environment):
    """One package of npm's and what is beside it; a program reads them from the directory."""

    @property
    def home(self) -> Path:
        """The directory that has node_modules."""
        return ROOT / f"node-{self.package.replace('/', '-').lstrip('@')}-{self.version}"

    def _commands(self) -> list[list[str]]:
        npm = find_program("npm", "npm")
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "package.json").write_text('{"private": true}')
        wanted = [f"{self.package}@{self.version}", *self.beside]
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        return [[npm, "install", "--prefix", str(self.home), *quiet, *wanted]]


@dataclass(frozen=True)
class GoProgram(Environment):
    """A program that Go builds from a folder of sources, once for each edition of them."""

    sources: Path = Path()

    @property
    def path(self) -> str:
        """The program; it is built first where it is missing."""
        self.install()
        return str(self.home / self.package)

    @property
    def home(self) -> Path:
        """The directory of the program, which a change of the sources renames."""
        read = b"".join(file.read_bytes() for file in sorted(self.sources.iterdir()))
        return ROOT / f"go-{self.package}-{hashlib.sha256(read).hexdigest()[:12]}"

    def _commands(self) -> list[list[str]]:
        go = find_program("go", "golang", "/usr/local/go/bin")
        out = str(self.home / self.package)
        return [[go, "build", "-C", str(self.sources), "-trimpath", "-buildvcs=false", "-o", out]]


SWIFT = Environment("swift", "2.38.3")
SECANTUSDB = Environment("secantusdb", "0.7.0b3")
MOTO = Environment("moto", "5.2.5", "[server,s3]")
KEYSTONE = Environment("keystone", "30.0.0")
ZAQAR = Environment(
    "zaqar",
    "23.0.1",
    beside=("ddt", "oslotest", "pymongo", "pytest", "redis", "testtools", "websocket-client"),
)
"""Its own tests are sent to our server."""
HADOOP = Jar("hadoop-client-minicluster", "3.5.0", group="org.apache.hadoop", is_rare=True)
"""Of the version of the client that pyspark has, without which it does not run."""
OPENAPI_GENERATOR = Jar("openapi-generator-cli", "7.16.0", group="org.openapitools", is_rare=True)
CELERY = Environment("celery", "5.7.0", "[sqs]", is_rare=True)
"""With boto3 as Celery asks for it."""
AIOBOTO3 = Environment("aioboto3", "15.5.0", is_rare=True)
SQS_OF_NODE = NodePackages(
    "@aws-sdk/client-sqs", "3.1169.0", beside=("sqs-consumer@15.0.3",), is_rare=True
)
SQS_OF_JAVA = Jars("sqs", "2.57.8", group="software.amazon.awssdk", is_rare=True)
SQS_OF_GO = GoProgram(
    "sqs-scenario",
    "1",
    is_rare=True,
    sources=Path(__file__).parents[1] / "sqs" / "clients" / "side" / "go",
)

ENVIRONMENTS = (
    *(SWIFT, SECANTUSDB, MOTO, KEYSTONE, ZAQAR, HADOOP, OPENAPI_GENERATOR),
    *(CELERY, AIOBOTO3, SQS_OF_NODE, SQS_OF_JAVA, SQS_OF_GO),
)
