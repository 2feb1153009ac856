"""The keys that seal a project's messages."""

from collections.abc import Sequence

from zaqar_lite.client import encoding
from zaqar_lite.client.models import DataKey
from zaqar_lite.client.wire import Call, Request, Response

PATH = "/v2/data-keys"


def list_data_keys() -> Call[Sequence[DataKey]]:
    """List the project's data keys."""
    return Call(Request("GET", PATH, {}), _read)


def rotate_data_key() -> Call[Sequence[DataKey]]:
    """Make a data key; answers all of them."""
    return Call(Request("POST", PATH, {}), _read, resend=False)


def _read(response: Response) -> Sequence[DataKey]:
    return [
        DataKey(
            one["id"], one["server_key"], encoding.instant(one.get("created_at")), one["current"]
        )
        for one in encoding.objects(response, "data_keys")
    ]
