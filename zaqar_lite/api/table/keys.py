"""The routes of keys."""

from zaqar_lite.api.routes import Parameter, Route
from zaqar_lite.api.table.shared import MARKER
from zaqar_lite.api.v2.keys import KeyHandlers
from zaqar_lite.domain.identity import Access, Verb

_KEY_PATH = "/v2/keys/{key_id}"
_LARGEST_KEY = 16_384


def key_routes(handlers: KeyHandlers) -> tuple[Route, ...]:
    """The routes of keys; they are there where the server knows keys."""
    return (
        Route(
            "POST",
            "/v2/keys",
            handlers.create,
            "create_key",
            "Create a key",
            (201, 400, 403, 413, 503),
            Access("keys:create", Verb.ADMIN),
            body="NewKey",
            answer="MadeKey",
            largest_body=_LARGEST_KEY,
        ),
        Route(
            "GET",
            "/v2/keys",
            handlers.list_keys,
            "list_keys",
            "List keys",
            (200, 400, 403, 503),
            Access("keys:get_all", Verb.ADMIN),
            (MARKER, Parameter("limit", "KeyLimit", "How many keys to answer at most.")),
            answer="Keys",
        ),
        Route(
            "GET",
            _KEY_PATH,
            handlers.get,
            "show_key",
            "Show a key",
            (200, 400, 403, 404, 503),
            Access("keys:get", Verb.ADMIN),
            answer="Key",
        ),
        Route(
            "PATCH",
            _KEY_PATH,
            handlers.change,
            "change_key",
            "Disable a key, or let it work again",
            (200, 400, 403, 404, 413, 503),
            Access("keys:update", Verb.ADMIN),
            body="KeyChange",
            answer="Key",
        ),
        Route(
            "POST",
            _KEY_PATH + "/rotate",
            handlers.rotate,
            "rotate_key",
            "Make a key like this one, which then ends",
            (201, 400, 403, 404, 413, 503),
            Access("keys:rotate", Verb.ADMIN),
            body="KeyOverlap",
            answer="MadeKey",
        ),
        Route(
            "DELETE",
            _KEY_PATH,
            handlers.delete,
            "delete_key",
            "Delete a key",
            (204, 400, 403, 503),
            Access("keys:delete", Verb.ADMIN),
        ),
    )
