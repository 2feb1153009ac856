"""The files around the code: hooks, workflow and templates are what they say."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_hooks_have_the_versions_of_the_tests_and_need_no_environment() -> None:
    pinned = set((ROOT / "tests" / "constraints.txt").read_text(encoding="utf-8").split())
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert {hook["id"] for hook in repository["hooks"]} >= {"ruff-check", "ruff-format"}
    for hook in repository["hooks"]:
        assert hook["language"] == "python"
        assert ".venv" not in hook["entry"]
        assert set(hook["additional_dependencies"]) <= pinned


def test_the_workflow_runs_ci_on_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    job = load(GITHUB / "workflows" / "ci.yml")["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == named
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "\ntests/run\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


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
