"""Who sends a request: by its signature (SigV4) where clients have keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from zaqar_lite.api.request import Request
from zaqar_lite.sqs.errors import SqsError

DEFAULT_REGION = "us-east-1"
_CREDENTIAL = re.compile(
    rb"Credential=(?P<key>[^/,\s]{1,256})/(?P<date>\d{8})/(?P<region>[a-z0-9-]{1,64})/"
    rb"(?P<service>[a-z0-9-]{1,64})/aws4_request"
)


def account_client(headers: Mapping[bytes, bytes]) -> str:
    """The client id of who sends a request: made from its access key, which need not be known."""
    found = _CREDENTIAL.search(headers.get(b"authorization", b""))
    return sha256(b"" if found is None else found["key"]).hexdigest()[:32]


def region_of(headers: Mapping[bytes, bytes]) -> str:
    """The region for which a request was signed: any will do, and ARNs show it again."""
    found = _CREDENTIAL.search(headers.get(b"authorization", b""))
    return DEFAULT_REGION if found is None else found["region"].decode()


@dataclass(eq=False, repr=False)
class SignedRequests:
    """Let in who signs with the secret of a key."""

    async def admit(self, request: Request) -> None:
        """Refuse a request: there is no way yet to know who sent it.

        Raises:
            SqsError: always.
        """
        raise SqsError("AccessDenied", "This server does not verify signatures yet.", 403)
