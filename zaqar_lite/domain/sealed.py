"""How a sealed body begins, so that no reader takes it for what was posted."""

PREFIX = b'"\\u0001sealed:1:'


def is_sealed(body: bytes) -> bool:
    """Tell whether a stored body has been sealed."""
    return body.startswith(PREFIX)
