"""Which tests cover which files: the narrow and quick ones first, the wide ones for what lives."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Stage:
    """Arguments of one run of pytest."""

    arguments: Sequence[str]
    drivers: str = "memory"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the run."""
        return {**os.environ, "ZAQAR_TEST_DRIVERS": self.drivers, "CI": "1"}


@dataclass(frozen=True)
class Part:
    """A part of the package and the tests that are to notice what is changed there."""

    name: str
    folders: Sequence[str]
    stages: Sequence[Stage]
    suffixes: Sequence[str] = field(default=(".py",))


_API = Stage(("tests/api", "-m", "not slow"))
_CONTRACT = ("tests/contract", "--deselect", "tests/contract/test_sizes.py")

PARTS = (
    Part("domain", ("zaqar_lite/domain",), (
        Stage(("tests/domain",)),
        Stage(_CONTRACT),
        _API,
        Stage(("tests/service", "tests/push", "-m", "not slow")),
    )),
    Part("service", ("zaqar_lite/service",), (
        Stage(("tests/service", "--deselect", "tests/service/test_killed.py")),
        _API,
        Stage(("tests/push", "-m", "not slow")),
    )),
    Part("api", ("zaqar_lite/api",), (_API, Stage(("tests/client", "-m", "not slow")))),
    Part("memory", ("zaqar_lite/storage/memory",), (
        Stage(("tests/drivers/memory",)),
        Stage(("tests/contract",)),
    )),
    Part("redis", ("zaqar_lite/storage/redis",), (
        Stage(("tests/drivers/redis/test_bounds.py", "tests/drivers/redis/test_letters.py")),
        Stage(_CONTRACT, "redis"),
        Stage(("tests/drivers/redis", "tests/contract/test_sizes.py", "-m", "not slow"), "redis"),
    ), (".py", ".lua")),
    Part("opendata", ("zaqar_lite/storage/opendata",), (
        Stage(_CONTRACT, "opendata-sqlite"),
        Stage(("tests/drivers/opendata", "-m", "not slow"), "opendata-sqlite"),
    )),
)  # fmt: skip

_TESTS = Path(__file__).parents[1]
_LONG = ("spark", "compat", "rabbitmq", "mutants", "contract", "drivers")


def nearest(path: str) -> list[Stage]:
    """Find the tests that import a Python module, or are called after it: they are tried first."""
    source = Path(path)
    if source.suffix != ".py":
        return []
    module = re.escape(".".join(source.with_suffix("").parts))
    found = [
        str(test.relative_to(_TESTS.parent))
        for test in sorted(_TESTS.rglob("test_*.py"))
        if test.relative_to(_TESTS).parts[0] not in _LONG
        and (
            test.stem.removeprefix("test_") == source.stem
            or re.search(rf"\b{module}\b", test.read_text(encoding="utf-8"))
        )
    ]
    return [Stage((*found, "-m", "not slow"))] if found else []
