"""How a sealed body begins, so that no reader takes it for what was posted."""

from zaqar_lite.domain.errors import Unavailable

PREFIX = b'"\\u0001sealed:1:'


def is_sealed(body: bytes) -> bool:
    """Tell whether a stored body has been sealed."""
    return body.startswith(PREFIX)


def check_opened(value: bytes, what: str) -> None:
    """Refuse the value of a record that is still sealed.

    Raises:
        Unavailable: this server has no key, so nobody opened it.
    """
    if is_sealed(value):
        raise Unavailable(f"The {what} is sealed: set encryption_key_file.")
