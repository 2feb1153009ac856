"""SQS's own description of its operations, which botocore has, and ours."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import MakeApi

if find_spec("botocore") is None and "CI" not in os.environ:
    pytest.skip("botocore is missing: tests/run --prepare", allow_module_level=True)

import botocore.session

pytestmark = pytest.mark.anyio
REFUSED = {"AddPermission", "RemovePermission"}
OF_FIFO = {"ReceiveRequestAttemptId"}


@pytest.fixture(scope="module")
def model() -> Any:
    return botocore.session.get_session().get_service_model("sqs")


@pytest.fixture
async def forms(make_api: MakeApi) -> dict[str, frozenset[str]]:
    """What each operation reads of its document, by our own description."""
    async with make_api(sqs=True) as api:
        document = (await api.call("GET", "/openapi.json")).json()
    shown = document["paths"]["/"]["post"]
    schemas = document["components"]["schemas"]
    targets, documents = schemas["SqsOperation"]["enum"], shown["x-documents"]
    assert list(documents) == targets
    answers = {status: str(one["content"]) for status, one in shown["responses"].items()}
    assert [one for one in answers if answers[one] != answers["400"]] == ["200"]
    assert shown["parameters"][0]["name"] == "X-Amz-Target"
    either = [one["$ref"] for one in schemas["SqsDocument"]["anyOf"]]
    assert sorted(either) == sorted({one["$ref"] for one in documents.values()})
    return {
        target.removeprefix("AmazonSQS."): frozenset(
            schemas[one["$ref"].rpartition("/")[2]]["properties"]
        )
        for target, one in documents.items()
    }


async def test_every_operation_is_served_but_those_that_are_refused(
    model: Any, forms: dict[str, frozenset[str]]
) -> None:
    assert forms.keys() == set(model.operation_names) - REFUSED


async def test_every_parameter_is_read(model: Any, forms: dict[str, frozenset[str]]) -> None:
    for name, read in forms.items():
        members = set(model.operation_model(name).input_shape.members) - OF_FIFO
        assert members <= read, name


async def test_operations_are_described_where_they_are_served(
    make_api: MakeApi, tmp_path: Path
) -> None:
    file = tmp_path / "admin.key"
    async with make_api(sqs=True, auth="keys", admin_key_file=file) as api:
        signed = (await api.call("GET", "/openapi.json")).json()
    scheme = signed["paths"]["/{account}/{queue}"]["post"]["security"][0]
    assert scheme.keys() < signed["components"]["securitySchemes"].keys()
    async with make_api() as api:
        document = (await api.call("GET", "/openapi.json")).json()
    assert document["paths"]["/"].keys() == {"get"}
    assert "Sqs" not in str(document)
