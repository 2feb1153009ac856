"""Tell systemd how the server does (`Type=notify`): one datagram, no library."""

import os
import socket


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1` or `WATCHDOG=1` to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(state.encode(), address.replace("@", "\0", 1))
    except OSError:
        return  # systemd does not listen any more: the server goes on without it


def watchdog_interval() -> float | None:
    """Half the seconds within which systemd expects a sign of life; None if it expects none."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant = os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    return int(microseconds) / 2e6 if microseconds.isdigit() and meant else None
