"""RabbitMQ: one node from Debian's package, run as whoever runs the tests.

The node gets an epmd (Erlang's name server) of its own, since it would otherwise leave one behind
that outlives the tests, and a home directory for its cookie.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.services.process import (
    Process,
    Service,
    find_program,
    free_ports,
    listens,
    make_data_directory,
)

_PACKAGE = "rabbitmq-server"
# The scripts here run as anybody; those of the same names in /usr/sbin insist on root.
_PROGRAMS = "/usr/lib/rabbitmq/bin"


@dataclass(frozen=True, kw_only=True)
class RabbitServer(Service):
    """A broker; `management_url` is empty when it runs without the management plugin."""

    management_url: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)


def rabbit_from(url: str) -> RabbitServer:
    """Describe a broker that somebody else runs, its management on the usual port 15672."""
    parts = urlsplit(url)
    management = f"http://{parts.username}:{parts.password}@{parts.hostname}:15672"
    return RabbitServer(url=url, management_url=management)


def start_rabbit(*, management: bool = True, configuration: Sequence[str] = ()) -> RabbitServer:
    """Start a broker; takes about ten seconds. `configuration` are lines for rabbitmq.conf."""
    program = find_program("rabbitmq-server", _PACKAGE, _PROGRAMS)
    epmd = find_program("epmd", _PACKAGE, "/usr/lib/erlang/bin")
    data = make_data_directory("rabbitmq")
    amqp, http, distribution, names = free_ports(4)
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{amqp}",
        "log.file.level = warning",
        "disk_free_limit.absolute = 50MB",
        "vm_memory_high_watermark.absolute = 512MiB",
        *configuration,
    ]
    if management:
        lines += ["management.tcp.ip = 127.0.0.1", f"management.tcp.port = {http}"]
    plugins = "rabbitmq_management" if management else ""
    environment = _lay_out(data, lines, f"[{plugins}].\n")
    environment |= {
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_NODENAME": f"zaqar{amqp}@localhost",
        "RABBITMQ_NODE_PORT": str(amqp),
        "RABBITMQ_DIST_PORT": str(distribution),
    }
    processes = (
        Process(
            [epmd, "-address", "127.0.0.1", "-port", str(names)],
            log=data / "epmd.log",
            env=environment,
        ),
        Process([program], log=data / "console.log", env=environment),
    )
    return RabbitServer(
        url=f"amqp://guest:guest@127.0.0.1:{amqp}/%2F",
        data=data,
        processes=processes,
        ready=lambda: _answers(amqp) and (not management or listens(http)),
        management_url=f"http://guest:guest@127.0.0.1:{http}" if management else "",
        environment=environment,
    ).start()


_QUICK_COUNTS = """[{rabbit, [
    {collect_statistics_interval, 500}, {quorum_tick_interval, 500}
]}].
"""
"""The management API counts every half second, not every five."""


def _lay_out(data: Path, configuration: Sequence[str], plugins: str) -> dict[str, str]:
    """Write the node's files under `data`; return the environment that keeps it to them."""
    for name in ("home", "mnesia", "log", "generated"):
        (data / name).mkdir()
    cookie = data / "home" / ".erlang.cookie"
    cookie.write_text(os.urandom(15).hex(), encoding="ascii")
    cookie.chmod(0o400)
    (data / "rabbitmq.conf").write_text("\n".join([*configuration, ""]), encoding="utf-8")
    (data / "enabled_plugins").write_text(plugins, encoding="utf-8")
    (data / "advanced.config").write_text(_QUICK_COUNTS, encoding="ascii")
    (data / "rabbitmq-env.conf").touch()  # empty, so that the one of /etc is not read
    loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
    return {
        "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "HOME": str(data / "home"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": str(data / "mnesia"),
        "RABBITMQ_LOG_BASE": str(data / "log"),
        "RABBITMQ_PID_FILE": str(data / "rabbitmq.pid"),
        "RABBITMQ_CONF_ENV_FILE": str(data / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(data / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "enabled_plugins"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(data / "generated"),
        # Two schedulers that sleep when idle: the broker shares the machine with the tests.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"{loopback} +zdbbl 8192 +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
        ),
        "RABBITMQ_CTL_ERL_ARGS": loopback,
    }


def _answers(port: int) -> bool:
    """Tell whether the broker answers the protocol header with its first frame."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False
