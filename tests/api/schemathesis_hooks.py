"""Teaches schemathesis our content types, and what no schema can say (SCHEMATHESIS_HOOKS)."""

import json
from typing import Any

import schemathesis

SQS = "application/x-amz-json-1.0"


@schemathesis.serializer("application/openstack-messaging-v2.0-json-patch", SQS)
def document(_context: Any, value: Any) -> bytes:
    """Write a document as JSON."""
    return json.dumps(value).encode()


@schemathesis.deserializer(SQS)
def answer(_context: Any, response: Any) -> Any:
    """Read an answer as JSON."""
    return json.loads(response.content)


@schemathesis.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Let no stream of events last: a schema can't say that an answer goes on for an hour."""
    if context.operation.path.endswith("/events"):
        return {**(query or {}), "seconds": 0}
    return query


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    """Leave out requests to SQS's paths that are not SQS's: they name no operation."""
    is_of_sqs = case.operation.definition.raw.get("operationId", "").startswith("sqs")
    return not is_of_sqs or (case.method == "POST" and "X-Amz-Target" in (case.headers or {}))
