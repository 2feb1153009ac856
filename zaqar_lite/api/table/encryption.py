"""The routes of data keys."""

from zaqar_lite.api.routes import Route
from zaqar_lite.api.v2.encryption import EncryptionHandlers
from zaqar_lite.domain.identity import Access, Verb


def encryption_routes(handlers: EncryptionHandlers) -> tuple[Route, ...]:
    """The routes of data keys; they are there where the server encrypts."""
    return (
        Route(
            "GET",
            "/v2/data-keys",
            handlers.list_keys,
            "list_data_keys",
            "List the keys that seal a project's messages",
            (200, 503),
            Access("data_keys:get_all", Verb.ADMIN),
            answer="DataKeys",
        ),
        Route(
            "POST",
            "/v2/data-keys",
            handlers.rotate,
            "rotate_data_key",
            "Seal a project's messages with a new key",
            (201, 409, 413, 503),
            Access("data_keys:rotate", Verb.ADMIN),
            answer="DataKeys",
        ),
    )
