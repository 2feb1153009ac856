"""The OpenAPI document and the routes are one thing, and nothing that is sent makes a 5xx."""

import asyncio
import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import CLIENT_ID, Api, MakeApi
from tests.server import ServerProcess
from tests.services.environments import OPENAPI_GENERATOR
from tests.services.process import find_program, run_program

pytestmark = pytest.mark.anyio
EXAMPLES = os.environ.get(
    "ZAQAR_TEST_FUZZ_EXAMPLES", "20" if "ZAQAR_TEST_ALL" in os.environ else "3"
)
# Zaqar pins answers that these checks would call wrong: 200 for a queue that was deleted, 400 by a
# rule that no schema can say (an expiry in the past, a ttl below the delay), and query values that
# are empty (dropped) or several (the last one counts).
EXCLUDED = "use_after_free,positive_data_acceptance,negative_data_rejection"
# The sequences of calls that schemathesis infers by itself take two fifths of the time.
PHASES = "coverage,fuzzing,stateful" if "ZAQAR_TEST_ALL" in os.environ else "coverage,fuzzing"
# Its answer has no end: each request would wait for the client's timeout.
ENDLESS = "stream_events"
PATCH, JSON = "application/openstack-messaging-v2.0-json-patch", "application/json"
SQS = "application/x-amz-json-1.0"


SUMMARIES = {
    "list_schedules": "List schedules",
    "show_subscription": "Show a subscription",
    "create_topic": "Create a topic",
    "post_messages": "Post messages",
    "fire_schedule": "Post a schedule's message now",
    "begin_delayed_act": "Begin to act on delayed messages",
}


async def test_documents_every_route_and_no_other(api: Api) -> None:
    document = (await api.call("GET", "/openapi.json")).json()
    documented = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert len(documented) >= 24
    for path in {path for _, path in documented}:
        options = await api.call("OPTIONS", path.replace("{", "").replace("}", ""))
        methods = {method for method, where in documented if where == path}
        assert set(options.headers["allow"].split(", ")) == methods | {"OPTIONS"}, path
    operations = {
        one["operationId"]: one for on in document["paths"].values() for one in on.values()
    }
    summaries = {name: one["summary"] for name, one in operations.items()}
    assert SUMMARIES.items() <= summaries.items()
    assert [name for name, told in summaries.items() if not told or told.endswith(".")] == []
    assert document["paths"]["/v2/queues"]["get"]["x-policy-rule"] == "queues:get_all"
    answers = document["paths"]["/v2/queues/{queue_name}"]["delete"]["responses"]
    assert ("content" in answers["204"], "content" in answers["400"]) == (False, True)
    answered = {name: one["responses"].get("200", {}) for name, one in operations.items()}
    streams = {n for n, one in answered.items() if "text/event-stream" in one.get("content", ())}
    assert streams == {ENDLESS}
    taken = {n: {said["name"] for said in one["parameters"]} for n, one in operations.items()}
    named = {n for n, names in taken.items() if names >= {"Client-ID", "X-Project-ID"}}
    others = "versions livez livez_head readyz readyz_head metrics queue_metrics queue_depth"
    assert operations.keys() - named == {*others.split()}


async def test_a_client_can_be_made_of_it_that_lacks_nothing(
    make_api: MakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_api(admin_mode=True, pooling=True, sqs=True) as api:
        document = (await api.call("GET", "/openapi.json")).json()
        await asyncio.to_thread(make_client, document, tmp_path)
        operations = [one for path in document["paths"].values() for one in path.values()]
        modules = (tmp_path / "made_client/api/default").glob("[a-z]*.py")
        assert {module.stem for module in modules} == {one["operationId"] for one in operations}
        monkeypatch.syspath_prepend(str(tmp_path))
        calls = importlib.import_module("made_client.api.default.claim_messages")
        made = importlib.import_module("made_client.client").Client(base_url="http://localhost")
        made.set_async_httpx_client(api.http)
        await api.post({"body": 1})
        asked = {"client_id": CLIENT_ID, "x_project_id": "demo", "limit": 5}
        answer = await calls.asyncio(api.queue, client=made, **asked)
        assert [one.body for one in answer.messages] == [1]


REMARKS = ("OpenAPI 3.1", "schema name: null", "undefined type", "No application/json")
"""What it says of any document of this edition, of any JSON, and of answers in plain text."""


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "typescript-fetch", "go", "java"])
async def test_openapi_generator_makes_a_client_that_lacks_nothing(
    make_api: MakeApi, tmp_path: Path, language: str
) -> None:
    if "ZAQAR_TEST_ALL" not in os.environ:
        pytest.skip("takes Java ten seconds: tests/run --all")
    async with make_api(admin_mode=True, pooling=True, sqs=True) as api:
        document = (await api.call("GET", "/openapi.json")).json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    words = ["generate", "-g", language, "-i", "openapi.json", "-o", "made"]
    made = await asyncio.to_thread(
        run_program,
        [find_program("java", "default-jre-headless"), "-jar", OPENAPI_GENERATOR.path, *words],
        cwd=tmp_path,
    )
    printed = made.stdout + made.stderr
    assert made.returncode == 0, printed
    warnings = [line for line in printed.splitlines() if "WARN" in line or "ERROR" in line]
    assert [one for one in warnings if not any(word in one for word in REMARKS)] == []
    names = set(re.findall(r"[a-z0-9]+", every_text(tmp_path / "made").replace("_", "").lower()))
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert {one["operationId"].replace("_", "") for one in operations} <= names


def every_text(folder: Path) -> str:
    """What the files of a folder say."""
    files = [file for file in folder.rglob("*.*") if file.suffix in (".py", ".ts", ".go", ".java")]
    return "".join(file.read_text() for file in files)


def make_client(document: Any, folder: Path) -> None:
    """Make a client in `made_client`; a schema or route that the tool leaves out is an error."""
    (folder / "openapi.json").write_text(json.dumps(document))
    # The tool asks to be told what other media types hold; it would format by any ruff.
    config = {"content_type_overrides": {PATCH: JSON, SQS: JSON}, "post_hooks": []}
    (folder / "config.json").write_text(json.dumps(config))
    made = run_program(
        [
            str(Path(sys.executable).with_name("openapi-python-client")),
            *("generate", "--path", "openapi.json", "--config", "config.json", "--meta", "none"),
            *("--output-path", "made_client", "--fail-on-warning"),
        ],
        cwd=folder,
    )
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.slow
def test_no_documented_or_undocumented_input_makes_a_5xx() -> None:
    # Nobody waits here: a request that waits for a minute is right, and says nothing.
    env = {"ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "secret" * 6, "ZAQAR_LITE_MAX_WAIT": "0"}
    with ServerProcess("memory://", "--admin-mode", "--sqs", env=env) as server:
        finished = run_program(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                *("run", f"{server.url}/openapi.json", "--checks", "all"),
                *("--exclude-checks", EXCLUDED, "--max-examples", EXAMPLES, "--no-color"),
                *("--exclude-operation-id", ENDLESS, "--phases", PHASES),
                *("-H", f"Client-ID: {CLIENT_ID}", "-H", "X-Project-ID: fuzz"),
            ],
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.api.schemathesis_hooks"},
            cwd=Path(__file__).parents[2],
        )
        assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
        assert "unexpected error" not in server.log()
