"""Teaches schemathesis the content type of a metadata patch (loaded by SCHEMATHESIS_HOOKS)."""

import json
from typing import Any

import schemathesis


@schemathesis.serializer("application/openstack-messaging-v2.0-json-patch")
def patch_document(_context: Any, value: Any) -> bytes:
    """Write a patch as JSON."""
    return json.dumps(value).encode()
