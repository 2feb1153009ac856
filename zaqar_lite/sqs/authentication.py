"""Who sends a request: the holder of a key, who signs it with the key's secret (SigV4).

The signature is over the method, the path, some headers, and the whole document. It counts for five
minutes, and so does one that somebody has copied, for that document alone.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote

from zaqar_lite.api.request import Request
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unauthenticated
from zaqar_lite.domain.identity import Principal
from zaqar_lite.service.identity.authentication import Authenticator
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.sqs.errors import SqsError

DEFAULT_REGION = "us-east-1"
SKEW = 300
"""Seconds by which the clocks of a client and of this server may differ."""
_CREDENTIAL = re.compile(
    rb"Credential=(?P<key>[!-+\--.0-~]{1,256})/(?P<date>\d{8})/(?P<region>[a-z0-9-]{1,64})/"
    rb"(?P<service>[a-z0-9-]{1,64})/aws4_request\b"
)
_SIGNED = re.compile(rb"SignedHeaders=([a-z0-9;_-]+)")
_SIGNATURE = re.compile(rb"Signature=([0-9a-f]{64})\b")
_ALGORITHM = b"AWS4-HMAC-SHA256"
_NEEDED = (b"host", b"x-amz-date", b"x-amz-target")
_OURS = b"x-amz-"
_UNSIGNED = frozenset((b"x-amz-content-sha256",))
"""A header that says what the document itself does, and so need not be signed."""


def client_of(headers: Mapping[bytes, bytes]) -> str:
    """The client id of who sends a request: made from its access key, which need not be known."""
    found = _CREDENTIAL.search(headers.get(b"authorization", b""))
    return sha256(b"" if found is None else found["key"]).hexdigest()[:32]


def region_of(headers: Mapping[bytes, bytes]) -> str:
    """The region for which a request was signed: any will do, and ARNs show it again."""
    found = _CREDENTIAL.search(headers.get(b"authorization", b""))
    return DEFAULT_REGION if found is None else found["region"].decode()


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
            request.principal = await self._verify(request)
        except SqsError:
            await self.identity.slow_down(request.address)
            raise

    async def _verify(self, request: Request) -> Principal:
        text = request.headers.get(b"authorization", b"")
        credential, signed = _CREDENTIAL.search(text), _SIGNED.search(text)
        signature = _SIGNATURE.search(text)
        if not text.startswith(_ALGORITHM) or not (credential and signed and signature):
            raise _refused("MissingAuthenticationToken", "The request is not signed (SigV4).")
        key_id = credential["key"].decode()

        async def principal() -> Principal | None:
            try:
                return None if self.keys is None else (await self.keys.signer(key_id)).principal
            except Unauthenticated:
                return None

        try:
            if self.keys is None:
                raise Unauthenticated("the server has no keys")
            signer = await self.keys.signer(key_id)
        except Unauthenticated:
            raise _refused(
                "InvalidClientTokenId", "The security token included in the request is invalid."
            ) from None
        scope = credential["date"], credential["region"], credential["service"]
        stamp = self._checked_date(request.headers.get(b"x-amz-date", b""), scope[0])
        canonical = _canonical_request(request, signed[1].split(b";"))
        signed_text = b"\n".join(
            (
                *(_ALGORITHM, stamp, b"/".join((*scope, b"aws4_request"))),
                sha256(canonical).hexdigest().encode(),
            )
        )
        key = b"AWS4" + signer.secret.encode()
        for part in (*scope, b"aws4_request"):
            key = hmac.digest(key, part, "sha256")
        expected = hmac.digest(key, signed_text, "sha256").hex().encode()
        if not hmac.compare_digest(expected, signature[1]) or scope[2] != b"sqs":
            raise _refused(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. "
                "Check your AWS Secret Access Key and signing method.",
            )
        request.identify_again = principal
        return signer.principal

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
            raise _refused(
                "RequestTimeTooSkewed",
                f"The request was signed at {at.isoformat()}, and it is "
                f"{datetime.fromtimestamp(now, UTC).isoformat(timespec='seconds')} here: the "
                f"clocks may differ by {SKEW} seconds.",
            )
        return stamp


def _refused(code: str, text: str) -> SqsError:
    return SqsError(code, text, 403)


def _canonical_request(request: Request, signed: list[bytes]) -> bytes:
    """What is signed of a request.

    Raises:
        SqsError: a header is not signed that must be.
    """
    headers = request.headers
    needed = {name for name in headers if name.startswith(_OURS)} - _UNSIGNED
    if not needed.union(_NEEDED) <= set(signed):
        raise _refused(
            "SignatureDoesNotMatch", "Host and all headers X-Amz-* of a request must be signed."
        )
    lines = [name + b":" + b" ".join(headers.get(name, b"").split()) for name in signed]
    return b"\n".join(
        (
            request.method.encode(),
            quote(request.head.raw_path, safe="/~").encode(),
            b"&".join(sorted(request.query_string.split(b"&"))),
            *lines,
            b"",
            b";".join(signed),
            sha256(request.document).hexdigest().encode(),
        )
    )
