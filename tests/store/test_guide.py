"""The commands of the guide to the embedded store, run one after the other."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from zaqar_lite.cli import main

GUIDE = Path(__file__).parents[2] / "api-ref" / "source" / "embedded-store.rst"


def test_every_command_of_the_guide_runs(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backups").mkdir()
    (tmp_path / "restored").mkdir()
    shutil.copytree(directory, "zaqar-lite-data")
    shutil.copy(directory / "zaqar.sqlite3", "recovered.sqlite3")  # as .recover writes it
    lines = re.findall(r"^   \$ (zaqar-lite store .+)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        words = shlex.split(line.replace("/srv/", f"{tmp_path}{os.sep}"))[1:]
        if words[1] == "salvage":
            shutil.rmtree("saved", ignore_errors=True)
        assert main(words) == 0, line
