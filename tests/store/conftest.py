"""A store that was filled and closed."""

import shutil
from pathlib import Path

import pytest

from tests.store.running import fill, on


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled store that no test changes."""
    directory = tmp_path_factory.mktemp("sample") / "data"
    on(directory, fill)
    return directory


@pytest.fixture
def directory(sample: Path, tmp_path: Path) -> Path:
    """A filled store of the test's own."""
    return Path(shutil.copytree(sample, tmp_path / "data"))
