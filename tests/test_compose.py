"""docker-compose.yml: valid by the compose specification, closed to the outside, and runnable.

No Docker daemon runs here: each service's command line and health check is run as a process.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from tests import services
from tests.commands.test_help import the_parser
from tests.conftest import StartServer
from tests.services.process import find_program, run_program, wait_until
from zaqar_lite.storage.registry import find_driver

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROFILES = {"embedded", "redis", "mongodb", "swift", "rabbitmq", "spark"}
OURS = sorted(name for name in SERVICES if name.startswith("zaqar"))
BUILT = sorted(name for name in SERVICES if "build" in SERVICES[name])


def dockerfile(name: str) -> list[str]:
    """Return the instructions of a service's image, after compose has read the dollars."""
    text: str = SERVICES[name]["build"]["dockerfile_inline"]
    return text.replace("$$", "$").replace("\\\n", " ").strip().splitlines()


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_file_keeps_the_compose_specification() -> None:
    folder = files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(COMPOSE)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"services": {"x": {"imagee": "y"}}})


def test_every_profile_is_complete() -> None:
    assert {profile for one in SERVICES.values() for profile in one["profiles"]} == PROFILES
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            ends = SERVICES[needed]["healthcheck"].get("disable", False)
            done = "service_completed_successfully" if ends else "service_healthy"
            assert how["condition"] == done
            assert set(service["profiles"]) <= set(SERVICES[needed]["profiles"]), (name, needed)
    assert "COMPOSE_PROFILES=embedded" in (ROOT / ".env").read_text(encoding="utf-8").splitlines()
    ports = [port.split(":")[1] for one in SERVICES.values() for port in one.get("ports", [])]
    assert len(ports) == len(set(ports))


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_pinned_watched_and_closed(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z0-9/-]+:\d+(\.\d+)+(-[a-z]+)?", service["image"])
    # What ends by itself is not watched, and not started again after it has done its work.
    if service["healthcheck"].get("disable"):
        assert service["restart"] == "on-failure"
    else:
        assert service["healthcheck"]["test"][0] == "CMD"
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert service.get("network_mode") is None
    for port in service.get("ports", []):
        published = re.fullmatch(r"127\.0\.0\.1:(\d+):(\d+)", port)
        assert published is not None, "published beyond this machine"
        assert name in OURS or published[1] != published[2], "a backend's usual port is others'"
    for volume in service.get("volumes", []):
        assert volume.split(":")[0] in COMPOSE["volumes"]


@pytest.mark.parametrize("name", BUILT)
def test_image_is_pinned_and_does_not_run_as_root(name: str) -> None:
    instructions = dockerfile(name)
    assert SERVICES[name]["pull_policy"] == "build"
    assert all(
        re.fullmatch(r"FROM [a-z]+:\d+\.\d+\.\d+-[a-z-]+", line)
        for line in instructions
        if line.startswith("FROM")
    )
    users = [line.split()[1] for line in instructions if line.startswith("USER")]
    assert users == ["10001"]
    assert instructions.index("USER 10001") > max(
        number for number, line in enumerate(instructions) if line.startswith("RUN")
    )


@pytest.mark.parametrize("name", sorted(set(BUILT) - {"swift"}))
def test_image_installs_an_extra_that_exists(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = SERVICES[name]["build"].get("args", {}).get("EXTRAS", "server")
    assert extra in project["optional-dependencies"]
    pinned = 'RUN pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]"'
    assert pinned in dockerfile(name)


@pytest.mark.slow
@pytest.mark.timeout(300)  # it installs what builds, a minute beside a busy machine
def test_wheel_builds_from_what_the_image_copies(tmp_path: Path) -> None:
    copies = [line.split()[1:] for line in dockerfile("zaqar") if line.startswith("COPY")]
    source = tmp_path / "src"
    source.mkdir()
    for *names, target in copies:
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target)
            else:
                shutil.copy(ROOT / name, source / target)
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = str(environment / "bin" / "pip")
    subprocess.run(
        [pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        check=True,
    )
    assert list(tmp_path.glob("zaqar_lite-*.whl"))


@pytest.mark.parametrize("name", OURS)
def test_our_server_starts_with_the_command_of_the_service(
    name: str, tmp_path: Path, server_process: StartServer, request: pytest.FixtureRequest
) -> None:
    command: list[str] = list(SERVICES[name]["command"])
    store = option(command, "--store")
    driver = find_driver(store)
    package = find_spec(driver.module)
    if package is None or package.origin is None:
        pytest.skip(f"this checkout has no {driver.name} driver")
    assert command[0] == "serve"
    options = command[1:]
    del options[options.index("--store") : options.index("--store") + 2]
    # Here nothing stands between the server and the network, so it stays on the loopback.
    options[options.index("--host") + 1] = "127.0.0.1"
    if driver.name in {"embedded", "opendata"}:
        reachable = store.replace("/data/", f"{tmp_path}/")
    else:
        backend = cast(services.Service, request.getfixturevalue(f"{driver.name}_server"))
        reachable = backend.url
    server = server_process(reachable, *options)
    run_health_check(SERVICES[name], {"ZAQAR_LITE_URL": server.url})


def run_health_check(service: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    program, *words = service["healthcheck"]["test"][1:]
    path = str(Path(sys.executable).with_name(program))
    run_program([path, *words], env=dict(environment), check=True)


def test_redis_starts_with_the_command_of_the_service(tmp_path: Path) -> None:
    program, *options = SERVICES["redis"]["command"]
    assert program == "redis-server"
    with services.start_redis(options=options) as server:
        assert server.cli("config", "get", "appendfsync").split() == ["appendfsync", "always"]
        check: list[str] = SERVICES["redis"]["healthcheck"]["test"]
        assert check[:2] == ["CMD", "redis-cli"]
        assert server.cli(*check[2:]).strip() == "PONG"


def test_swift_node_starts_with_the_command_of_the_service(tmp_path: Path) -> None:
    instructions = dockerfile("swift")
    copied = next(line for line in instructions if line.startswith("COPY")).split()
    assert f"ENV PYTHONPATH={Path(copied[2]).parent}" in instructions
    assert f'ENTRYPOINT ["python", "{copied[2]}"]' in instructions
    assert (ROOT / copied[1]).is_file()
    pinned = f"swift=={services.environments.SWIFT.version}"
    assert any(pinned in line for line in instructions)
    options: list[str] = list(SERVICES["swift"]["command"])
    port, *backends = services.free_ports(4)
    options[options.index("--data") + 1] = str(tmp_path / "node")
    options[options.index("--bind") + 1] = "127.0.0.1"
    options[options.index("--port") + 1] = str(port)
    python = services.environments.SWIFT.program("python")
    node = services.Process(
        [python, str(ROOT / copied[1]), *options, "--backend-ports", *map(str, backends)],
        log=tmp_path / "log",
        env={"PYTHONPATH": str((ROOT / copied[1]).parent), "PYTHONWARNINGS": "ignore"},
    )
    check: list[str] = SERVICES["swift"]["healthcheck"]["test"]
    words = [python, *(word.replace("8080", str(port)) for word in check[2:])]
    try:
        node.start()
        wait_until(
            lambda: subprocess.run(words, capture_output=True, check=False).returncode == 0, [node]
        )
    finally:
        node.kill()


def test_rabbitmq_health_check_passes_on_a_broker(
    rabbitmq_server: services.RabbitServer,
) -> None:
    _, program, *words = SERVICES["rabbitmq"]["healthcheck"]["test"]
    assert (program, words[-1]) == ("rabbitmq-diagnostics", "5672")
    if rabbitmq_server.environment:
        path = find_program(program, "rabbitmq-server", "/usr/lib/rabbitmq/bin")
        words[-1] = str(urlsplit(rabbitmq_server.url).port)
        subprocess.run([path, *words], env=rabbitmq_server.environment, check=True)


def test_the_delays_are_declared_before_they_are_relayed() -> None:
    """What the commands do on a broker is told by tests/rabbitmq/test_guide.py."""
    assert set(SERVICES["delay-relay"]["depends_on"]) == {"delay-apply", "zaqar"}
    for name in ("delay-apply", "delay-relay"):
        words = the_parser().parse_args(SERVICES[name]["command"])
        assert (words.command, words.max_delay) == ("delay", 31 * 86_400)
    port = option(SERVICES["delay-relay"]["command"], "--metrics-port")
    assert f":{port}/metrics" in SERVICES["delay-relay"]["healthcheck"]["test"][-1]
