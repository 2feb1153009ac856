"""How schemas are written down."""

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {}


def object_of(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object with these properties, of which some must be there."""
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def list_of(items: Schema) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": items}


LINKS = list_of(object_of(("rel", "href"), rel=TEXT, href=TEXT))
