"""A server for the clients of SQS, and how their programs are run."""

import importlib.util
import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.docs.pages import README, URL, commands
from tests.server import ServerProcess
from tests.services.environments import (
    AIOBOTO3,
    SQS_OF_GO,
    SQS_OF_JAVA,
    SQS_OF_NODE,
)
from tests.services.process import find_program, missing, run_program

SIDE = Path(__file__).with_name("side")
IS_LONG = "ZAQAR_TEST_ALL" in os.environ
SERVER_SETTINGS = {"ZAQAR_LITE_SQS": "true"}


@pytest.fixture(scope="session")
def sqs_url() -> Iterator[str]:
    """Our server, as the two lines of the README say, or one that ZAQAR_TEST_SQS_URL names."""
    command, setting = (line for line in commands(README) if "sqs" in line.lower())
    assert setting == f"export AWS_ENDPOINT_URL_SQS={URL}"
    url = os.environ.get("ZAQAR_TEST_SQS_URL")
    if url:
        yield url
    else:
        with ServerProcess("memory://", *command.split()[2:]) as server:
            yield server.url


def environment_of(url: str) -> dict[str, str]:
    """Return the environment of a client: one setting of it turns every SDK to our server."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ZAQAR_"))
    }
    return {
        **inherited,
        "AWS_ENDPOINT_URL_SQS": url,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONPATH": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def python_program(name: str, *arguments: str) -> list[str]:
    """The command of a Python program that uses boto3, with that of the tests."""
    if importlib.util.find_spec("boto3") is None:
        missing("boto3", "tests/run --prepare")
    return [sys.executable, str(SIDE / name), *arguments]


def aioboto3_program(name: str, *arguments: str) -> list[str]:
    """The command of a Python program that uses aioboto3."""
    return [AIOBOTO3.program("python"), str(SIDE / name), *arguments]


def java_program(name: str, *arguments: str) -> list[str]:
    """The command of a Java program, which is compiled when it starts."""
    java = find_program("java", "default-jdk-headless")
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
    return [java, *options, "-cp", SQS_OF_JAVA.classpath, str(SIDE / name), *arguments]


def go_program(*arguments: str) -> list[str]:
    """The command of the Go program."""
    return [SQS_OF_GO.path, *arguments]


class Told(dict[str, dict[str, Any]]):
    """What a program said of each step; a step that it did not come to fails with its words."""

    def __init__(self, steps: dict[str, dict[str, Any]], words: str) -> None:
        super().__init__(steps)
        self.words = words

    def __missing__(self, step: str) -> NoReturn:
        pytest.fail(f"the program did not come to {step}:\n{self.words[-3000:]}", pytrace=False)


def run_steps(
    command: list[str], url: str, *, cwd: Path | None = None, source: str | None = None
) -> Told:
    """Run a client's program."""
    done = run_program(command, env=environment_of(url), cwd=cwd, input=source)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return Told({line.pop("step"): line for line in lines}, done.stderr)


def run_node(name: str, prefix: str, url: str) -> Told:
    """Run a program of Node, which reads it from its input and packages from where it runs."""
    SQS_OF_NODE.install()
    node = find_program("node", "nodejs")
    command = [node, "--no-warnings", "--input-type=module", "-", prefix]
    source = (SIDE / name).read_text(encoding="utf-8")
    return run_steps(command, url, cwd=SQS_OF_NODE.home, source=source)


@pytest.fixture(scope="module")
def prefix() -> str:
    """What the names of a module's queues begin with."""
    return f"q{uuid.uuid4().hex[:12]}"
