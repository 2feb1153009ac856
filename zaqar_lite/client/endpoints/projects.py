"""What projects have: keys, quotas, and the keys that encrypt their messages."""

from collections.abc import Iterable, Sequence
from typing import Any

from zaqar_lite.client.arguments import texts, whole
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.endpoints.requests import ask, path_of, tell
from zaqar_lite.client.models import AccessKey, DataKey, ProjectQuota
from zaqar_lite.client.serialization import reader
from zaqar_lite.client.steps import Pages, Steps, listing, method

_KEY = reader(AccessKey)
_DATA_KEY = reader(DataKey)
_QUOTA = reader(ProjectQuota)


class Keys(BaseClient):
    """Make, list, disable, rotate and delete keys; the server asks for the verb `admin`."""

    @method
    def create_key(
        self,
        grants: Iterable[str],
        *,
        project: str | None = None,
        operator: bool = False,
        expires: int | None = None,
        description: str = "",
    ) -> Steps[AccessKey]:
        """Make a key; its `key` is the only copy there is.

        Args:
            grants: what it opens, such as `send:orders*`.
            project: whose it is; the client's own when None.
            operator: make one that is bound to no project.
            expires: seconds until it ends.
            description: for whoever looks at the list.
        """
        wanted: dict[str, object] = {"grants": texts("grants", grants), "description": description}
        if project is not None or operator:
            wanted["project"] = project
        if expires is not None:
            wanted["expires"] = whole("expires", expires)
        # Sent twice it would make two, one of which nobody knows.
        return self._exchange(ask("POST", "/v2/keys", _KEY, wanted, resend=False))

    @listing
    def list_keys(self) -> Pages[AccessKey]:
        """Yield the project's keys by id, page by page, without their texts."""
        return self._pages("/v2/keys", "keys", _KEY)

    @method
    def get_key(self, key_id: str) -> Steps[AccessKey]:
        """Return a key without its text."""
        return self._exchange(ask("GET", path_of("keys", key_id), _KEY))

    @method
    def disable_key(self, key_id: str, *, disabled: bool = True) -> Steps[AccessKey]:
        """Disable a key, within 5 seconds; `disabled=False` enables it again."""
        return self._exchange(ask("PATCH", path_of("keys", key_id), _KEY, {"disabled": disabled}))

    @method
    def rotate_key(self, key_id: str, *, overlap: int | None = None) -> Steps[AccessKey]:
        """Make a key with the same grants; the old one ends after `overlap` seconds (a day)."""
        wanted = {} if overlap is None else {"overlap": whole("overlap", overlap)}
        path = path_of("keys", key_id, "rotate")
        return self._exchange(ask("POST", path, _KEY, wanted, resend=False))

    @method
    def delete_key(self, key_id: str) -> Steps[None]:
        """Delete a key; an absent one is no error."""
        return self._exchange(tell("DELETE", path_of("keys", key_id)))

    @method
    def list_data_keys(self) -> Steps[Sequence[DataKey]]:
        """Return the keys that encrypt the messages of the project's queues, by age."""
        return self._exchange(ask("GET", "/v2/data-keys", _data_keys))

    @method
    def rotate_data_key(self) -> Steps[Sequence[DataKey]]:
        """Encrypt what is posted from now on with a new key; return all keys."""
        return self._exchange(ask("POST", "/v2/data-keys", _data_keys, resend=False))


def _data_keys(document: Any) -> Sequence[DataKey]:  # noqa: ANN401 - JSON is anything
    return [_DATA_KEY(one) for one in document["data_keys"]]


class Quotas(BaseClient):
    """Show, set and reset quotas."""

    @method
    def show_quota(self, project: str | None = None) -> Steps[ProjectQuota]:
        """Return a project's quotas and usage: the client's own, or any for an operator."""
        path = "/v2/quota" if project is None else path_of("quotas", project)
        return self._exchange(ask("GET", path, _QUOTA))

    @method
    def set_quota(self, /, project: str, **limits: int | None) -> Steps[ProjectQuota]:
        """Set a project's quotas, `queues=100`, in place of all that were set; None lifts one."""
        return self._exchange(ask("PUT", path_of("quotas", project), _QUOTA, limits))

    @method
    def reset_quota(self, project: str) -> Steps[None]:
        """Give a project the default quotas."""
        return self._exchange(tell("DELETE", path_of("quotas", project)))
