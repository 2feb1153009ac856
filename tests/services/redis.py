"""Redis: one server, a master with a replica and three sentinels, or a cluster."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from tests.services.process import (
    Process,
    Service,
    find_program,
    free_ports,
    make_data_directory,
    run_program,
    wait_until,
)

Fsync = Literal["always", "everysec", "no"]

SENTINEL_SERVICE = "mymaster"


@dataclass(frozen=True, kw_only=True)
class RedisServer(Service):
    """One Redis process."""

    port: int

    def cli(self, *words: str) -> str:
        """Run a command with redis-cli and return what it prints."""
        return _cli(self.port, *words)


@dataclass(frozen=True, kw_only=True)
class RedisSentinel(Service):
    """A master, a replica and three sentinels; each node can be killed and restarted alone."""

    service: str
    nodes: tuple[RedisServer, ...]
    sentinels: tuple[RedisServer, ...]

    def master(self) -> RedisServer:
        """Return the node that the sentinels call the master now."""
        answer = self.sentinels[0].cli("sentinel", "get-master-addr-by-name", self.service)
        port = int(answer.split()[1])
        return next(node for node in self.nodes if node.port == port)

    def fail_over(self) -> None:
        """Let the sentinels promote the replica and wait until they say it is the master."""
        before = self.master().port
        self.sentinels[0].cli("sentinel", "failover", self.service)
        wait_until(lambda: self.master().port != before, self.processes)


@dataclass(frozen=True, kw_only=True)
class RedisCluster(Service):
    """Three masters and their replicas; each node can be killed and restarted alone."""

    nodes: tuple[RedisServer, ...]


def redis_from(url: str) -> RedisServer:
    """Describe a Redis server that somebody else runs."""
    return RedisServer(url=url, port=urlsplit(url).port or 6379)


def start_redis(
    *, appendfsync: Fsync | None = None, options: Sequence[str] = (), port: int | None = None
) -> RedisServer:
    """Start one Redis server; without `appendfsync` it keeps nothing over a restart.

    `options` are further words of redis-server's command line, such as `--maxmemory`, `1mb`.
    """
    data = _make_data_directory()
    port = port or free_ports(1)[0]
    return _node(data, "redis", port, (*_persistence(appendfsync), *options), owner=True).start()


def start_redis_sentinel(*, appendfsync: Fsync | None = None) -> RedisSentinel:
    """Start a master, a replica and three sentinels; quorum 2, a dead master noticed after 1 s."""
    data = _make_data_directory()
    master, replica, *watchers = free_ports(5)
    keep = _persistence(appendfsync)
    nodes = (
        _node(data, "redis-0", master, keep),
        _node(data, "redis-1", replica, (*keep, "--replicaof", "127.0.0.1", str(master))),
    )
    sentinels = tuple(
        _sentinel(data, f"sentinel-{number}", port, master) for number, port in enumerate(watchers)
    )
    hosts = ",".join(f"127.0.0.1:{port}" for port in watchers)

    def agreed() -> bool:
        return _replicating(nodes, masters=1) and all(
            _cli(port, "sentinel", "ckquorum", SENTINEL_SERVICE).startswith("OK 3 ")
            and "\nslave\n" in _cli(port, "sentinel", "replicas", SENTINEL_SERVICE)
            for port in watchers
        )

    sentinel = RedisSentinel(
        url=f"redis+sentinel://{hosts}/{SENTINEL_SERVICE}",
        data=data,
        processes=tuple(process for node in (*nodes, *sentinels) for process in node.processes),
        ready=agreed,
        service=SENTINEL_SERVICE,
        nodes=nodes,
        sentinels=sentinels,
    )
    try:
        for node in nodes:
            node.start()
        # A sentinel asks the master for its replicas at once, and then only every 10 s.
        wait_until(lambda: _replicating(nodes, masters=1), sentinel.processes[:2])
        return sentinel.start()
    except BaseException:
        sentinel.stop()
        raise


def start_redis_cluster(
    *, replicas: int = 0, appendfsync: Fsync | None = None, options: Sequence[str] = ()
) -> RedisCluster:
    """Start three masters, each with `replicas` replicas; a dead node is noticed after 2 s."""
    data = _make_data_directory()
    count = 3 + 3 * replicas
    ports = free_ports(2 * count)
    nodes = tuple(
        _node(
            data,
            f"cluster-{number}",
            port,
            (
                *_persistence(appendfsync),
                *("--cluster-enabled", "yes", "--cluster-port", str(ports[count + number])),
                *("--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000"),
                *options,
            ),
        )
        for number, port in enumerate(ports[:count])
    )
    addresses = [f"127.0.0.1:{node.port}" for node in nodes]

    def formed() -> bool:
        infos = [node.cli("cluster", "info") for node in nodes]
        return (
            all(f"cluster_known_nodes:{count}\n" in info for info in infos)
            and all("cluster_state:ok" in info for info in infos)
            and _replicating(nodes, masters=3)
        )

    cluster = RedisCluster(
        url=f"redis+cluster://{','.join(addresses[:3])}",
        data=data,
        processes=tuple(process for node in nodes for process in node.processes),
        ready=formed,
        nodes=nodes,
    )
    try:
        for node in nodes:
            node.start()
        run_program(
            [
                *(find_program("redis-cli", "redis-tools"), "--cluster", "create", *addresses),
                *("--cluster-replicas", str(replicas), "--cluster-yes"),
            ],
            check=True,
            timeout=60,
        )
        return cluster.start()
    except BaseException:
        cluster.stop()
        raise


def _make_data_directory() -> Path:
    find_program("redis-server", "redis-server")  # before there is something to clean up
    return make_data_directory("redis")


def _persistence(appendfsync: Fsync | None) -> tuple[str, ...]:
    if appendfsync is None:
        return ("--save", "", "--appendonly", "no")
    return ("--save", "", "--appendonly", "yes", "--appendfsync", appendfsync)


def _node(
    data: Path, name: str, port: int, options: Sequence[str], *, owner: bool = False
) -> RedisServer:
    home = data / name
    home.mkdir()
    command = [
        *(find_program("redis-server", "redis-server"), "--port", str(port)),
        *("--bind", "127.0.0.1", "--dir", str(home), "--daemonize", "no"),
        *("--repl-diskless-sync-delay", "0", *options),  # 5 s by default
    ]
    return RedisServer(
        url=f"redis://127.0.0.1:{port}/0",
        data=data if owner else None,
        processes=(Process(command, log=home / "log", cwd=home),),
        ready=lambda: _answers(port),
        port=port,
    )


def _sentinel(data: Path, name: str, port: int, master: int) -> RedisServer:
    home = data / name
    home.mkdir()
    # A sentinel writes what it learns into this file, so that a restart keeps the promotion.
    (home / "sentinel.conf").write_text(
        f"port {port}\nbind 127.0.0.1\ndir {home}\nprotected-mode no\n"
        f"sentinel monitor {SENTINEL_SERVICE} 127.0.0.1 {master} 2\n"
        f"sentinel down-after-milliseconds {SENTINEL_SERVICE} 1000\n"
        f"sentinel failover-timeout {SENTINEL_SERVICE} 5000\n",
        encoding="utf-8",
    )
    command = [find_program("redis-server", "redis-server"), "sentinel.conf", "--sentinel"]
    return RedisServer(
        url=f"redis://127.0.0.1:{port}",
        processes=(Process(command, log=home / "log", cwd=home),),
        ready=lambda: _answers(port),
        port=port,
    )


def _replicating(nodes: Sequence[RedisServer], *, masters: int) -> bool:
    """Tell whether there are so many masters and every other node has all that its master has."""
    infos = [node.cli("info", "replication") for node in nodes]
    synchronised = sum("master_link_status:up" in info for info in infos)
    return (
        sum("role:master" in info for info in infos) == masters
        and synchronised == len(nodes) - masters
    )


def _answers(port: int) -> bool:
    """Tell whether Redis answers a PING; while it loads its data it does not."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _cli(port: int, *words: str) -> str:
    program = find_program("redis-cli", "redis-tools")
    return run_program([program, "-h", "127.0.0.1", "-p", str(port), *words], timeout=10).stdout
