"""Run the server: uvicorn with uvloop and httptools, one process or several."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal, get_args, get_origin

import uvicorn

from zaqar_lite.api.application import Application
from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.environment import PREFIX
from zaqar_lite.main import create_app
from zaqar_lite.server import logs
from zaqar_lite.server.connections import HttpConnection, connections_of
from zaqar_lite.server.gc_tuning import Collector
from zaqar_lite.server.loading import Reloading, Source
from zaqar_lite.server.sockets import SocketProtocol
from zaqar_lite.server.tls import Certificate, accept
from zaqar_lite.server.workers import NEVER_WORKS, Workers, notify, watchdog_interval
from zaqar_lite.service.metrics.shared_counters import Place, make_file
from zaqar_lite.settings import Settings

logger = logging.getLogger("zaqar_lite")
_BACKLOG = 2_048
_LOOK = 0.1
_OPTIONS = (
    *("host", "port", "websocket_port", "store", "management_store", "workers"),
    *("admin_mode", "sqs", "pooling", "trust_headers"),
    *("auth", "keystone_url", "policy_file", "admin_key_file"),
    *("tls_cert", "tls_key", "tls_client_ca", "audit", "access_log", "log_level"),
)
"""The settings that `serve` takes as options too."""


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; then finish requests, close the stores and answer 0.

    A signal during the start has the same effect. A configuration that can never work ends the
    server with one line and exit code 1: on standard error for settings and URIs, in the log for
    what the store refuses. Exit code 2 is for a wrong command line and for an address in use.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))  # until reloading works
    source = Source(arguments.config, _overrides(arguments))
    logs.configure()  # reading the settings may warn
    try:
        settings = source.read()
        logs.configure(settings.log_level)
        _certificate(settings)  # one that can't be used is told now, once
        app = create_app(settings)
    except ConfigurationError as exc:
        print(f"zaqar-lite: {exc}", file=sys.stderr)
        return NEVER_WORKS
    if not (settings.is_loopback or settings.providers or settings.names_gateways):
        logger.warning(
            "listening on %s with trusted headers: every client may act for any project",
            settings.host,
        )
    listeners: list[socket.socket] = []
    for port in (settings.port, settings.websocket_port):
        try:
            listeners += [] if port is None else [_listen(settings.host, port)]
        except (OSError, TypeError) as exc:  # some names are none that could be looked up
            why = getattr(exc, "strerror", exc)
            print(
                f"zaqar-lite: can't listen on {settings.host}:{port}: {why}.",
                file=sys.stderr,
            )
            return 2
    announce = _announce(settings, listeners)
    if settings.workers == 1:
        return _serve(settings, source, app, listeners, announce)
    board = make_file(settings.workers, app.metrics.families.size)
    try:
        return Workers(settings.workers, announce, _work, settings, source, listeners, board).run()
    finally:
        board.unlink(missing_ok=True)


def _serve(
    settings: Settings,
    source: Source,
    app: Application,
    listeners: list[socket.socket],
    announce: Callable[[], None],
) -> int:
    """Run the server in this process; answer its exit code."""
    sys.setswitchinterval(0.0005)  # by its 5 ms a thread that has synced tells of it too late
    reloading = Reloading(settings, source, _certificate(settings), app)
    server = _Server(connections_of(app, settings), announce, reloading)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again once it has drained; without this the exit code is not 0.
        signal.signal(number, server.handle_exit)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    server.run(sockets=listeners)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # or a second signal would interrupt the end
    return NEVER_WORKS if server.has_failed else 0


def _work(
    settings: Settings,
    source: Source,
    listeners: list[socket.socket],
    board: Path,
    number: int,
    *,
    tell: Callable[[], None],
) -> int:
    """Run one of several server processes; systemd hears of them by their parent."""
    os.environ.pop("NOTIFY_SOCKET", None)
    logs.configure(settings.log_level)
    app = create_app(settings, Place(board, settings.workers, number))
    return _serve(settings, source, app, listeners, tell)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready, and can be stopped before it is."""

    def __init__(
        self,
        connection: type[HttpConnection],
        announce: Callable[[], None],
        reloading: Reloading,
    ) -> None:
        super().__init__(_config(connection, reloading))
        self._connection = connection
        self._reloading, self._app = reloading, reloading.app
        metrics = self._app.metrics
        metrics.reloads = lambda: (reloading.succeeded, reloading.at)
        connections = self.server_state.connections
        metrics.gauges["connections"] = lambda: len(connections)
        metrics.gauges["sockets"] = lambda: sum(
            isinstance(one, SocketProtocol) for one in connections
        )
        self._collector = Collector()
        self._background: list[asyncio.Task[None]] = []
        self._announce = announce
        self._starting: asyncio.Task[object] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the stores and listen, unless a signal comes first.

        uvicorn itself looks for signals only once it has started. If the start is interrupted, the
        application closes what it has opened when its task is cancelled with the event loop.
        """
        self._starting = asyncio.current_task()
        loop = asyncio.get_running_loop()
        self._collector.start(loop.call_soon_threadsafe)
        loop.add_signal_handler(signal.SIGHUP, self._renew)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        certificate = self._reloading.certificate
        if certificate is not None:
            self._background.append(asyncio.create_task(certificate.follow()))
        interval = watchdog_interval()
        if interval is not None:
            self._background.append(asyncio.create_task(_show_life(interval)))
        if self.should_exit:
            self._end_start()
        try:
            await super().startup(sockets if certificate is None else [])
        except SystemExit:  # the application can't start and has said why: `has_failed`
            self.should_exit = True
        except asyncio.CancelledError:
            if not self.should_exit:
                raise
            logger.info("stopped before it was ready")
            return
        finally:
            self._starting = None
        if self.started and not self.should_exit:
            if certificate is not None:
                for one in sockets or ():
                    accepting = accept(one, certificate, self._connection, self.server_state)
                    self._background.append(asyncio.create_task(accepting))
            self._announce()

    def _end_start(self) -> None:
        if self._starting is not None:  # else it has ended since the signal came
            self._starting.cancel()

    def _renew(self) -> None:
        """Reopen the audit trail, and read settings and certificate again."""
        if self._app.auditor is not None:
            self._app.auditor.reopen()
        self._reloading.reload()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve for `drain_delay`, answer the requests that wait, then wait for the others."""
        notify("STOPPING=1")
        deadline = time.monotonic() + self._reloading.settings.drain_delay
        while time.monotonic() < deadline and not self.force_exit and not self.has_failed:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)  # what is looked at are flags of uvicorn's
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)  # they use the listeners
        self._app.stop()
        await super().shutdown(sockets)
        self._collector.stop()

    @property
    def has_failed(self) -> bool:
        """Whether the application ended itself, at its start or later."""
        return bool(self.lifespan.should_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal; during the start it ends the start."""
        super().handle_exit(sig, frame)
        self._app.drain()
        if self._starting is not None:
            self._starting.get_loop().call_soon_threadsafe(self._end_start)


async def _show_life(interval: float) -> None:
    """Tell systemd again and again that the event loop runs."""
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)


def _certificate(settings: Settings) -> Certificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def _config(connection: type[HttpConnection], reloading: Reloading) -> uvicorn.Config:
    return uvicorn.Config(
        reloading.app,
        loop="uvloop",
        http=connection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=reloading.settings.shutdown_timeout,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    listener.set_inheritable(True)
    return listener


def _announce(settings: Settings, listeners: Sequence[socket.socket]) -> Callable[[], None]:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    secure = "" if settings.tls_cert is None else "s"
    ports = [listener.getsockname()[1] for listener in listeners]
    places = [
        f"{scheme}{secure}://{host}:{port}"
        for scheme, port in zip(("http", "ws"), ports, strict=False)
    ]

    def announce() -> None:
        logger.info("listening on %s (store %s)", " and ".join(places), shown(settings.store))
        notify("READY=1")

    return announce


def _overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings that were given on the command line."""
    return {
        name: value
        for name, value in vars(arguments).items()
        if name in Settings.model_fields and value is not None
    }


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare `serve`; an option that is not given comes from the file or the environment."""
    parser = subparsers.add_parser(
        "serve",
        help="run the server",
        epilog="An option goes before its variable, and that before the TOML file. The page "
        "`settings` of the guides lists the settings that have no option.",
    )
    parser.set_defaults(run=run)
    for name in _OPTIONS:
        field = Settings.model_fields[name]
        option = "--" + name.replace("_", "-")
        default = f" ({field.default})" if field.default else ""
        text = f"{field.description}{default} [{PREFIX}{name.upper()}]"
        if field.annotation is bool:
            parser.add_argument(option, action="store_true", default=None, help=text)
        elif get_origin(field.annotation) is Literal:
            parser.add_argument(option, choices=get_args(field.annotation), help=text)
        else:
            kinds = get_args(field.annotation) or (field.annotation,)
            parser.add_argument(option, type=int if int in kinds else str, help=text)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"Settings in TOML. [{PREFIX}CONFIG]"
    )
