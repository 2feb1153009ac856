"""Python servers that the tests start live in virtual environments of their own.

Their pins (eventlet, botocore, an exact pymongo) would otherwise decide the versions that the
tests run our own code with. A server of Java's is a jar, which Maven fetches.
"""

import fcntl
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.services.process import find_program, missing, skip_in_quick_run

ROOT = Path(__file__).parents[2] / ".cache" / "services"


@dataclass(frozen=True)
class Environment:
    """One server program from PyPI."""

    package: str
    version: str
    extras: str = ""
    beside: tuple[str, ...] = ()
    """What the environment has besides."""

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
        with (ROOT / f"{self.package}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                self._install()
                done.touch()

    def _install(self) -> None:
        for command in self._commands():
            result = subprocess.run(command, capture_output=True, text=True, check=False)
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
HADOOP = Jar("hadoop-client-minicluster", "3.5.0", group="org.apache.hadoop")
"""Of the version of the client that pyspark has, without which it does not run."""

ENVIRONMENTS = (SWIFT, SECANTUSDB, MOTO, KEYSTONE, ZAQAR, HADOOP)
