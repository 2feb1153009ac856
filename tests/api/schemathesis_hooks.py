"""Teaches schemathesis the content type of a metadata patch (loaded by SCHEMATHESIS_HOOKS)."""

import json
from typing import Any

import schemathesis


@schemathesis.serializer("application/openstack-messaging-v2.0-json-patch")
def patch_document(_context: Any, value: Any) -> bytes:
    """Write a patch as JSON."""
    return json.dumps(value).encode()


@schemathesis.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Let no stream of events last: a schema can't say that an answer goes on for an hour."""
    if context.operation.path.endswith("/events"):
        return {**(query or {}), "seconds": 0}
    return query
