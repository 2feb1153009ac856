"""One server for all workers of a parallel run: who asks first starts it, and ends it as the last.

The files that the workers agree by are in the run's own directory. A worker that started a server
keeps the lock `NAME.owner` as long as it lives, so that a server whose worker died is started anew.
Everybody who uses one keeps a share of `NAME.used`, for which the owner waits before it ends it.
"""

import contextlib
import fcntl
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import IO, TypeVar, cast

from tests import limits
from tests.services.process import Service

S = TypeVar("S", bound=Service)
_OWN = {"data", "processes", "ready"}
"""What only the owner has: others can neither kill a server nor remove its data."""


@contextlib.contextmanager
def shared(name: str, start: Callable[[], S], folder: Path) -> Iterator[S]:
    """Start a server unless another process that uses `folder` has; it must suit many users."""
    with (
        (folder / f"{name}.owner").open("ab") as owner,
        (folder / f"{name}.used").open("ab") as used,
    ):
        with _locked(folder, name):
            is_owner = _try_lock(owner)
            service = start() if is_owner else cast(S, _read(folder / name))
            if is_owner:
                _publish(service, folder / name)
            fcntl.flock(used, fcntl.LOCK_SH)
        try:
            yield service
        finally:
            while is_owner:
                with _locked(folder, name):
                    if _try_lock(used):
                        service.stop()
                        fcntl.flock(owner, fcntl.LOCK_UN)
                        break
                limits.renew()
                time.sleep(0.2)


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    with (folder / f"{name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _publish(service: Service, file: Path) -> None:
    told = {one.name: getattr(service, one.name) for one in fields(service) if one.name not in _OWN}
    file.write_bytes(pickle.dumps((type(service), told)))


def _read(file: Path) -> Service:
    kind, told = pickle.loads(file.read_bytes())  # noqa: S301 - written by another worker
    service: Service = kind(**told)
    return service
