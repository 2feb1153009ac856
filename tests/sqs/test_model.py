"""SQS's own description of its operations, which botocore has, and ours."""

import os
from importlib.util import find_spec
from typing import Any, get_type_hints

import pytest

from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

if find_spec("botocore") is None and "CI" not in os.environ:
    pytest.skip("botocore is missing: tests/run --prepare", allow_module_level=True)

import botocore.session

REFUSED = {"AddPermission", "RemovePermission"}
OF_FIFO = {"ReceiveRequestAttemptId"}


@pytest.fixture(scope="module")
def model() -> Any:
    return botocore.session.get_session().get_service_model("sqs")


@pytest.fixture(scope="module")
def forms() -> dict[str, frozenset[str]]:
    """What each operation reads of its document."""
    app = create_app(load(environment={}, overrides={"store": "memory://", "sqs": True}))
    dialect = app.dialect
    assert dialect is not None
    return {
        route.template.removeprefix("/#"): frozenset(
            get_type_hints(route.action)["call"].__args__[0].__struct_encode_fields__
        )
        for route in dialect.routes
    }


def test_every_operation_is_served_but_those_that_are_refused(
    model: Any, forms: dict[str, frozenset[str]]
) -> None:
    assert forms.keys() == set(model.operation_names) - REFUSED


def test_every_parameter_is_read(model: Any, forms: dict[str, frozenset[str]]) -> None:
    for name, read in forms.items():
        members = set(model.operation_model(name).input_shape.members) - OF_FIFO
        assert members <= read, name
