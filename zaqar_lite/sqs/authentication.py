"""Who sends a request: the holder of a key, who signs it with the key's secret (SigV4).

The signature is over the method, the path, some headers, and the whole document. It counts for five
minutes, and so does one that somebody has copied, for that document alone.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from urllib.parse import quote

from zaqar_lite.api.request import Request
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unauthenticated
from zaqar_lite.domain.identity import Principal
from zaqar_lite.service.identity.authentication import LATEST, SLOWED, Authenticator
from zaqar_lite.service.identity.keys import Keys, Signer
from zaqar_lite.sqs.errors import SqsError

SKEW = 300
"""Seconds by which the clocks of a client and of this server may differ."""
_ALGORITHM = b"AWS4-HMAC-SHA256"
_CREDENTIAL = re.compile(
    rb"Credential=(?P<key>[!-+\--.0-~]{1,256})/"
    rb"(?P<scope>(?P<date>\d{8})/(?P<region>[a-z0-9-]{1,64})/sqs/aws4_request)\b"
)
_SIGNED = re.compile(rb"SignedHeaders=([a-z0-9;_-]+)")
_SIGNATURE = re.compile(rb"Signature=([0-9a-f]{64})\b")
_NEEDED = {b"host", b"x-amz-date", b"x-amz-target"}
_UNSIGNED = {b"x-amz-content-sha256"}
"""A header that says what the document itself does, and so need not be signed."""


def claimed_by(headers: Mapping[bytes, bytes]) -> tuple[str, str]:
    """The client id of who sends a request, and its region, whether or not it is signed well.

    The id is made from the access key. Any region will do, and ARNs show it again.
    """
    found = _CREDENTIAL.search(headers.get(b"authorization", b""))
    key, region = (b"", b"us-east-1") if found is None else (found["key"], found["region"])
    return sha256(key).hexdigest()[:32], region.decode()


@dataclass(eq=False, repr=False)
class SignedRequests:
    """Let in who signs with the secret of a key; nobody where there are no `keys`."""

    keys: Keys | None
    identity: Authenticator
    clock: Clock

    async def admit(self, request: Request) -> None:
        """Fill in the principal of a request that is signed.

        Raises:
            SqsError: it is not signed, or not by the holder of a key, or too long ago.
            Unavailable: that can't be found out now.
        """
        try:
            await self._verify(request)
        except SqsError:
            request.waits = SLOWED + LATEST
            await self.identity.slow_down(request.address)
            raise

    async def _verify(self, request: Request) -> None:
        text = request.headers.get(b"authorization", b"")
        credential, signed = _CREDENTIAL.search(text), _SIGNED.search(text)
        signature = _SIGNATURE.search(text)
        if not text.startswith(_ALGORITHM) or not (credential and signed and signature):
            raise _refused("MissingAuthenticationToken", "The request is not signed (SigV4).")
        key_id, scope = credential["key"].decode(), credential["scope"]
        signer = await self._signer(key_id)
        if signer is None:
            raise _refused("InvalidClientTokenId", "The access key id is that of no live key.")
        stamp = self._checked_date(request.headers.get(b"x-amz-date", b""), credential["date"])
        key = b"AWS4" + signer.secret.encode()
        for part in scope.split(b"/"):
            key = hmac.digest(key, part, "sha256")
        canonical = sha256(_canonical_request(request, signed[1])).hexdigest().encode()
        expected = hmac.digest(key, b"\n".join((_ALGORITHM, stamp, scope, canonical)), "sha256")
        if not hmac.compare_digest(expected.hex().encode(), signature[1]):
            raise _refused("SignatureDoesNotMatch", "The signature does not match the request.")
        request.principal = signer.principal
        request.identify_again = partial(self._principal, key_id)

    async def _signer(self, key_id: str) -> Signer | None:
        try:
            return None if self.keys is None else await self.keys.signer(key_id)
        except Unauthenticated:
            return None

    async def _principal(self, key_id: str) -> Principal | None:
        signer = await self._signer(key_id)
        return None if signer is None else signer.principal

    def _checked_date(self, stamp: bytes, date: bytes) -> bytes:
        """When a request was signed, which must be about now.

        Raises:
            SqsError: it is not.
        """
        now = self.clock.now_ms() / 1000
        try:
            at = datetime.strptime(stamp.decode("latin-1"), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise _refused("MissingAuthenticationToken", "X-Amz-Date is missing.") from None
        if abs(at.timestamp() - now) > SKEW or not stamp.startswith(date):
            text = f"Signed at {at.isoformat()}, more than {SKEW} seconds from the server's time."
            raise _refused("RequestTimeTooSkewed", text)
        return stamp


def _refused(code: str, text: str) -> SqsError:
    return SqsError(code, text, 403)


def _canonical_request(request: Request, names: bytes) -> bytes:
    """What is signed of a request, whose signed headers have these names.

    Raises:
        SqsError: a header is not signed that must be.
    """
    headers, signed = request.headers, names.split(b";")
    needed = _NEEDED | {name for name in headers if name.startswith(b"x-amz-")} - _UNSIGNED
    if not needed.issubset(signed):
        raise _refused("SignatureDoesNotMatch", "Host and all headers X-Amz-* must be signed.")
    lines = [name + b":" + b" ".join(headers.get(name, b"").split()) for name in signed]
    path = quote(request.raw_path, safe="/~").encode()
    query = b"&".join(sorted(request.query_string.split(b"&")))
    digest = sha256(request.document).hexdigest().encode()
    return b"\n".join((request.method.encode(), path, query, *lines, b"", names, digest))
