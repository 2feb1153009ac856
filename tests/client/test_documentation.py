"""The SDK's documentation: every Python block runs against a real server."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import pages
from tests.server import ServerProcess
from tests.services.process import run_program

SDK = pages.SOURCE / "sdk.rst"


def install_into(python: str) -> list[str]:
    """Return the words that install into another environment, by whichever made this one."""
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", python]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    return [*pip, "install", "--no-compile"]


def blocks() -> list[str]:
    """Return the Python blocks of the page."""
    return [block.text for block in pages.blocks(SDK, "python")]


@pytest.fixture(scope="module")
def clean_server() -> Iterator[ServerProcess]:
    """A server of their own: the blocks use plain queue names."""
    with ServerProcess("memory://", env={"ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "k" * 32}) as process:
        yield process


@pytest.mark.parametrize("number", range(len(blocks())))
def test_a_block_of_the_documentation_runs(clean_server: ServerProcess, number: int) -> None:
    source = blocks()[number].replace(pages.URL, clean_server.url)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, f"{SDK.name} block {number}", "exec"), {"__name__": "documentation"})  # noqa: S102 - the documentation is ours


@pytest.mark.slow
@pytest.mark.timeout(300)  # a minute beside a busy machine
def test_an_empty_environment_needs_only_the_base_install(
    clean_server: ServerProcess, tmp_path: Path
) -> None:
    # The installer is that of this environment: a pip of its own and byte code take half the time.
    venv = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")]
    subprocess.run(venv, check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [*install_into(python), "--quiet", str(pages.ROOT)], check=True, cwd=tmp_path, env=env
    )
    program = blocks()[0].replace(pages.URL, clean_server.url)
    absent = "import importlib.util as u; assert not any(map(u.find_spec, {!r}))"
    check = absent.format(["fastapi", "uvicorn", "pydantic", "redis", "pymongo", "httpx"])
    done = run_program([python, "-c", f"{check}\n{program}"], check=True, cwd=tmp_path, env=env)
    assert done.stdout.endswith("left\n")
    words = [str(tmp_path / "venv" / "bin" / "zaqar-lite"), "queue", "stats", "orders"]
    run_program([*words, "--url", clean_server.url], check=True, env=env)
    refused = run_program([words[0], "serve"], env=env)
    assert refused.returncode == 2
    assert "zaqar-lite[server]" in refused.stderr
