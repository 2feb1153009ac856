"""Where a figure was measured: the machine, the commit, and the CPU time of a local server."""

import contextlib
import os
import platform
import subprocess
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_LISTEN = "0A"


def describe() -> dict[str, str]:
    """Name the processor, the number of cores, Python, the commit and the load average."""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "commit": _commit(),
        "load": load,
    }


def server_processes(port: int) -> list[int]:
    """The processes of this machine that listen on a port, and what they started (Linux).

    Empty for a remote server.
    """
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    if not sockets:
        return []
    listening = {pid for pid in _pids() if sockets & _files(pid)}
    return sorted(listening.union(*map(descendants, listening)))


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes so far."""
    total = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def descendants(pid: int) -> list[int]:
    """The living processes that a process started, and what they started in turn (Linux).

    A server may have workers, and its store may write in a process of its own.
    """
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                found += [child, *descendants(child)]
    return found


def _files(pid: int) -> set[str]:
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(entry.readlink()))
    except OSError:
        return found
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - the user's own git
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()
