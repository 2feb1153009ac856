"""A file system of a few megabytes, to be filled up. It needs the right to mount a tmpfs."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.process import missing, run_program


@contextmanager
def mounted(size: int) -> Iterator[Path]:
    """Mount a file system of so many bytes.

    It lies outside of pytest's folders: what a killed run leaves mounted there, no later run could
    remove, and each would fail for it.
    """
    with tempfile.TemporaryDirectory(prefix="zaqar-disk-") as place:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
        try:
            run_program(command, check=True)
        except (OSError, subprocess.CalledProcessError) as refused:
            missing("the right to mount a tmpfs", str(refused))
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", "--lazy", place], check=False)


def fill_up(disk: Path) -> Path:
    """Take all that is left of a disk; answer the file that does."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4_096))
    return filler
