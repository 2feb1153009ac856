"""The shape of the code: who may import whom, how long a module may be, what it may be called."""

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

from tests import sizes

ROOT = Path(__file__).parents[1]
SOURCES = ("zaqar_lite", "tempest_plugin", "tests")

# What puts the layers together may import everything, and no layer imports it.
ROOTS = {"__main__", "main", "cli", "serve", "store", "commands", "bench"}
# Parts of the command line that lie beside what they command.
ELSEWHERE = {"rabbitmq/commands.py", "rabbitmq/broker_commands.py", "spark/cli.py"}

MOST_LINES = {"zaqar_lite": 700, "tempest_plugin": 700, "tests": 700}
# A module that has a reason to be longer: its path, and the reason.
LONGER: dict[str, str] = {}

# A function with no home is a missing noun.
NO_NAMES = {"utils", "util", "common", "core", "helpers", "helper", "misc"}


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imported(module: Path) -> set[str]:
    """Return the dotted names that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_package_is_held_by_a_contract() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    held = {
        module
        for contract in linter["importlinter"]["contracts"]
        for key in ("layers", "modules", "source_modules")
        for module in contract.get(key, [])
    }
    packages = {
        f"zaqar_lite.{path.parent.name}" for path in (ROOT / "zaqar_lite").glob("*/__init__.py")
    }
    assert packages - held <= {f"zaqar_lite.{root}" for root in ROOTS}
    drivers = {
        f"zaqar_lite.storage.{path.parent.name}"
        for path in (ROOT / "zaqar_lite" / "storage").glob("*/__init__.py")
    }
    assert drivers <= held


def test_no_layer_imports_a_composition_root() -> None:
    guilty = {
        f"{module.relative_to(ROOT)} imports {name}"
        for module in modules("zaqar_lite")
        if module.relative_to(ROOT / "zaqar_lite").parts[0].removesuffix(".py") not in ROOTS
        if module.relative_to(ROOT / "zaqar_lite").as_posix() not in ELSEWHERE
        for name in imported(module)
        if name.split(".")[:1] == ["zaqar_lite"] and set(name.split(".")[1:2]) & ROOTS
    }
    assert not guilty


def test_tempest_plugin_stands_alone() -> None:
    guilty = {
        f"{module.relative_to(ROOT)} imports {name}"
        for module in modules("tempest_plugin")
        for name in imported(module)
        if name.split(".")[0] == "zaqar_lite"
    }
    assert not guilty


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("zaqar_lite", cache_dir=None)
    edges = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(edges).prepare()  # raises, and names the circle


def test_every_folder_of_the_package_has_a_limit_of_lines() -> None:
    folders = {path.parent.name for path in sizes.ROOT.glob("*/*.py")}
    named = {name for names in sizes.SIZES for name in names.split(", ")}
    assert folders <= named


def test_only_settings_reads_the_environment() -> None:
    reads = re.compile(
        r"os\.getenv\(|os\.environ(?!\.setdefault\()"
    )  # a library's switch is set so
    guilty = [
        str(module.relative_to(ROOT))
        for module in modules("zaqar_lite/api", "zaqar_lite/service", "zaqar_lite/storage")
        if {"os.environ", "os.getenv"} & imported(module)
        or reads.search(module.read_text(encoding="utf-8"))
    ]
    assert not guilty


def test_modules_are_not_too_long() -> None:
    too_long = {
        str(module.relative_to(ROOT))
        for source, most in MOST_LINES.items()
        for module in modules(source)
        if len(module.read_text(encoding="utf-8").splitlines()) > most
    }
    assert too_long - LONGER.keys() == set()
    needless = LONGER.keys() - too_long
    assert not needless, "these are no longer too long: take them out of LONGER"


def test_modules_are_named_for_what_they_hold() -> None:
    guilty = [
        str(path.relative_to(ROOT))
        for path in modules(*SOURCES)
        if NO_NAMES & {path.stem, *path.relative_to(ROOT).parts}
    ]
    assert not guilty


def test_no_file_names_the_machine_it_was_written_on() -> None:
    places = [f"/{folder}/" for folder in ("work", "root", "tmp/brief")]
    guilty = [
        f"{path.relative_to(ROOT)}: {place}"
        for folder in (*SOURCES, "api-ref/source", "releasenotes/notes", ".ci")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in {".py", ".rst", ".yaml", ".lua", ".json", ""}
        for place in places
        if place in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert not guilty


def test_one_version_stands_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    for name in (
        "zaqar_lite/__init__.py",
        "api-ref/source/conf.py",
        "releasenotes/source/conf.py",
    ):
        assert f'"{version}"' in (ROOT / name).read_text(encoding="utf-8"), name
    images = re.findall(
        r"image: zaqar-lite/(?!swift-node)[a-z]+:(\S+)", (ROOT / "docker-compose.yml").read_text()
    )
    assert set(images) == {version}


def test_only_what_uvicorn_documents_is_used_of_it() -> None:
    """Its private classes may change with any release."""
    found = [
        line
        for module in modules("zaqar_lite")
        for line in module.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) uvicorn", line)
    ]
    assert found == ["import uvicorn"]
