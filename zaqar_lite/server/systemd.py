"""Tell systemd how the server does (`Type=notify`): one datagram, no library."""

import os
import socket


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1` or `WATCHDOG=1` to who started us, if that wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(state.encode(), address.replace("@", "\0", 1))
    except OSError:
        return  # nobody listens any more: the server must not end by that


def watchdog_interval() -> float | None:
    """Seconds between two signs of life that systemd waits for, halved; None when for none."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant = os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    return int(microseconds) / 2e6 if microseconds.isdigit() and meant else None
