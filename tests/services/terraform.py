"""Terraform's provider for RabbitMQ, built by Go from its module.

A machine that does not reach the registry of providers can build one where a Go proxy is reached.
The build takes one to two minutes the first time, and is kept.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tests.services.environments import ROOT
from tests.services.process import missing, run_program

VERSION = "1.8.0"
_PLUGINS = ROOT / f"terraform-provider-rabbitmq-{VERSION}"
# The module's own name is not its address, so a main module has to say where it is.
_NAME = "github.com/terraform-providers/terraform-provider-rabbitmq"
_MODULE = f"""module provider

go 1.19

require {_NAME} v{VERSION}

replace {_NAME} => github.com/cyrilgdn/terraform-provider-rabbitmq v{VERSION}
"""


def rabbitmq_provider() -> Path:
    """The directory for `terraform init -plugin-dir`; it is built where it is not there yet."""
    go = shutil.which("go")
    if go is None:
        missing("go", "install Go 1.19 or later")
    system = run_program([go, "env", "GOOS", "GOARCH"], check=True)
    folder = _PLUGINS / "registry.terraform.io/cyrilgdn/rabbitmq" / VERSION
    program = folder / "_".join(system.stdout.split()) / f"terraform-provider-rabbitmq_v{VERSION}"
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / "terraform-provider-rabbitmq.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(go, program)
    return _PLUGINS


def _build(go: str, program: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "go.mod").write_text(_MODULE)
        built = Path(place) / program.name
        done = run_program(
            [go, "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", str(built), _NAME],
            cwd=place,
            env={**os.environ, "CGO_ENABLED": "0"},
        )
        if done.returncode != 0:
            missing("the provider of RabbitMQ", f"Go can't build it:\n{done.stderr[-2000:]}")
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, program)
