"""Tokens of an issuer (JWT): which count, by whose keys, and what their claims mean."""

import asyncio
import base64
import json
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.api.conftest import Api, MakeApi
from tests.local_http import LocalHandler, LocalServer
from zaqar_lite.domain.errors import Unauthenticated, Unavailable
from zaqar_lite.server.identity_servers import Jwks
from zaqar_lite.service.identity.oidc import PublishedKeys

pytestmark = pytest.mark.anyio
ISSUER = "https://issuer.example.org"
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
SHORT = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)  # noqa: S505 - it must be refused


def published(**keys: Any) -> dict[str, Any]:
    """A JWKS of public keys by their ids."""
    documents = []
    for kid, key in keys.items():
        is_rsa = isinstance(key, rsa.RSAPrivateKey)
        algorithm: Any = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
        document = algorithm.to_jwk(key.public_key(), as_dict=True)
        documents.append({**document, "kid": kid, "alg": "RS256" if is_rsa else "ES256"})
    return {"keys": documents}


def in_seconds(seconds: int) -> int:
    """An instant, in seconds since 1970."""
    return int(time.time()) + seconds


def token(
    key: Any = EC_KEY, kid: str | None = "ec", algorithm: str = "ES256", **claims: Any
) -> str:
    now = int(time.time())
    content = {
        "iss": ISSUER,
        "aud": "zaqar-lite",
        "sub": "alice",
        "iat": now,
        "exp": now + 600,
        "project_id": "p",
        **claims,
    }
    content = {name: value for name, value in content.items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    with warnings.catch_warnings(action="ignore"):
        return jwt.encode(content, key, algorithm=algorithm, headers=headers)


def encoded(part: bytes) -> str:
    """A part of a token."""
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def unsigned(header: object) -> str:
    """A token with any header, signed by nobody."""
    return f"{encoded(json.dumps(header).encode())}.{token().split('.')[1]}.AAAA"


@pytest.fixture
async def guarded(make_api: MakeApi, tmp_path: Path) -> AsyncIterator[Api]:
    async with make_api(**settings(keys_file(tmp_path)), signed_url_secret_key="k" * 32) as api:
        del api.http.headers["X-Project-ID"]
        yield api


def keys_file(folder: Path) -> Path:
    """The keys that our issuer publishes, in a file."""
    file = folder / "jwks.json"
    file.write_text(json.dumps(published(ec=EC_KEY, rsa=RSA_KEY, short=SHORT)))
    return file


def settings(keys: object, **more: Any) -> dict[str, Any]:
    return {
        "auth": "jwt",
        "jwt_issuer": ISSUER,
        "jwt_audience": "zaqar-lite",
        "jwt_keys": str(keys),
        "max_failed_logins": 1_000,
        **more,
    }


async def ask(api: Api, text: str, method: str = "GET", path: str = "/v2/queues") -> httpx.Response:
    return await api.call(method, path, Authorization=f"Bearer {text}")


# Tokens are made when their test runs: those made at the import would have expired in a long run.
GOOD: list[Callable[[], str]] = [
    token,
    lambda: token(RSA_KEY, "rsa", "RS256"),
    lambda: token(aud=["others", "zaqar-lite"]),
    lambda: token(roles="member reader", nbf=in_seconds(0)),
    lambda: token(exp=str(in_seconds(60)), iat=str(in_seconds(0))),
    lambda: token(exp=in_seconds(60) + 0.5, roles=None),
]


@pytest.mark.parametrize("good", GOOD)
async def test_a_token_of_the_issuer_is_let_in(guarded: Api, good: Callable[[], str]) -> None:
    assert (await ask(guarded, good())).status_code == 200


async def test_tokens_and_keys_stand_beside_each_other(make_api: MakeApi, tmp_path: Path) -> None:
    async with make_api(**settings(keys_file(tmp_path), auth="keys, jwt")) as api:
        del api.http.headers["X-Project-ID"]
        for text, status in ((token(), 200), ("zq_wrong", 401), (token(aud="other"), 401)):
            assert (await ask(api, text)).status_code == status


WRONG: dict[str, Callable[[], str]] = {
    "another key": lambda: token(OTHER),
    "an unknown key": lambda: token(kid="none"),
    "no key id": lambda: token(kid=None),
    "a key of another algorithm": lambda: token(RSA_KEY, "ec", "RS256"),
    "a short key": lambda: token(SHORT, "short", "RS256"),
    "a shared secret": lambda: token("k" * 32, "ec", "HS256"),
    "no signature": lambda: token(None, "ec", "none"),
    "another issuer": lambda: token(iss="https://other.example.org"),
    "another audience": lambda: token(aud="other"),
    "expired": lambda: token(exp=in_seconds(-60), iat=in_seconds(-600)),
    "not yet": lambda: token(nbf=in_seconds(600)),
    "without an end": lambda: token(exp=None),
    "without a beginning": lambda: token(iat=None),
    "without a subject": lambda: token(sub=None),
    "without a project": lambda: token(project_id=None),
    "an empty project": lambda: token(project_id=""),
    "a project that is no text": lambda: token(project_id=["p"]),
    "a long life": lambda: token(exp=in_seconds(90_000)),
    "roles that are no texts": lambda: token(roles=[1]),
    "grants that are none": lambda: token(grants=["do:everything"]),
    "grants that allow nothing": lambda: token(grants=[]),
    "a project that is no UTF-8": lambda: token(project_id="\ud800"),
    "a project of two lines": lambda: token(project_id="p\nq"),
    "an endless life in texts": lambda: token(exp=str(in_seconds(90_000)), iat=str(in_seconds(0))),
    "an infinite life": lambda: token(exp=float("inf")),
    "an end that is no number": lambda: token(exp=[in_seconds(60)]),
    "a beginning that is no number": lambda: token(iat=float("nan")),
    "an audience that is no text": lambda: token(aud=[1]),
    "a subject that is no text": lambda: token(sub=["alice"]),
    "roles that are an object": lambda: token(roles={"admin": True}),
    "a key id that is a path": lambda: token(kid="../../jwks.json"),
    "a key id that is no text": lambda: unsigned({"alg": "ES256", "kid": ["ec"]}),
    "an algorithm that is no text": lambda: unsigned({"alg": ["ES256"], "kid": "ec"}),
    "a header that is no object": lambda: unsigned(["ES256"]),
    "a header too deep to be read": lambda: f"{encoded(b'[' * 6_000)}.e30.e30",
    "a body that is apart": lambda: unsigned({"alg": "ES256", "kid": "ec", "b64": False}),
    "no token": lambda: "a.b.c",
    "nothing": lambda: "..",
}


@pytest.mark.parametrize("wrong", list(WRONG.values()), ids=list(WRONG))
async def test_any_other_token_is_401(guarded: Api, wrong: Callable[[], str]) -> None:
    answer = await ask(guarded, wrong())
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, 401)


async def test_grants_decide_where_there_are_some_and_roles_elsewhere(guarded: Api) -> None:
    sender, own = token(grants=["send:orders"]), token()
    path = "/v2/queues/orders/messages"
    document = {"messages": [{"body": 1}]}
    await guarded.expect(201, "POST", path, document, Authorization=f"Bearer {sender}")
    assert (await ask(guarded, sender, path=path)).status_code == 403
    for _ in range(3):  # it is believed for a minute, and looked at again
        assert (await ask(guarded, own, path=path)).status_code == 200
        guarded.advance(50)
    named = {"Authorization": f"Bearer {token()}", "X_Project_ID": "another"}
    await guarded.expect(403, "GET", path, **named)


# The issuer's keys over HTTP.


class Asked(LocalHandler):
    server: "IssuerServer"

    def get(self) -> None:
        self.server.asked += 1
        self.server.pause.wait(8)
        document = self.server.document
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answer(self.server.status, text, {"Location": "/elsewhere"})


class IssuerServer(LocalServer):
    """An issuer that publishes its keys and counts who asks for them."""

    def __init__(self) -> None:
        super().__init__(Asked)
        self.url += "/jwks"
        self.document: Any = published(ec=EC_KEY)
        self.status = 200
        self.asked = 0
        self.pause = Event()
        self.pause.set()


@pytest.fixture
def issuer() -> Iterator[IssuerServer]:
    with IssuerServer() as made:
        yield made


class Time:
    """A monotonic clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_keys_are_read_once_for_many_and_again_when_one_is_new(
    issuer: IssuerServer,
) -> None:
    clock = Time()
    keys = PublishedKeys(Jwks(issuer.url).fetch, monotonic=clock)
    await asyncio.gather(*(keys.find("ec", "ES256") for _ in range(20)))
    assert issuer.asked == 1
    clock.now = 30
    issuer.document = published(ec=EC_KEY, new=OTHER)
    await keys.find("new", "ES256")
    assert issuer.asked == 2
    for number in range(100):  # who guesses ids makes no request
        with pytest.raises(Unauthenticated):
            await keys.find(f"guess-{number}", "ES256")
    assert issuer.asked == 2
    for clock.now, asked in ((330, 2), (331, 3)):
        await keys.find("ec", "ES256")
        assert issuer.asked == asked


TROUBLES = [
    *(500, 302, "no keys", {"keys": 1}, {"keys": ["a"]}, {"keys": []}, {"keys": [{}]}),
    {"keys": [{"kty": "RSA", "kid": "ec", "alg": "RS256", "n": 5, "e": "AQAB"}]},
    *(b"[" * 5_000, b" " * 1_048_577),
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=range(len(TROUBLES)))
async def test_an_issuer_that_is_away_is_forgiven_for_hours(
    issuer: IssuerServer, trouble: object
) -> None:
    clock = Time()
    keys = PublishedKeys(Jwks(issuer.url).fetch, monotonic=clock)
    await keys.find("ec", "ES256")
    if isinstance(trouble, int):
        issuer.status, issuer.document = trouble, {}
    else:
        issuer.document = trouble
    clock.now = 6 * 3600
    await keys.find("ec", "ES256")
    clock.now += 1
    with pytest.raises(Unavailable):
        await keys.find("ec", "ES256")


async def test_a_slow_issuer_holds_up_no_token_whose_key_is_known(issuer: IssuerServer) -> None:
    clock = Time()
    keys = PublishedKeys(Jwks(issuer.url).fetch, monotonic=clock)
    await keys.find("ec", "ES256")
    issuer.pause.clear()
    clock.now = 400
    issuer.document = published(new=OTHER)
    try:
        async with asyncio.timeout(5):
            await asyncio.gather(*(keys.find("ec", "ES256") for _ in range(20)))
    finally:
        issuer.pause.set()
    await keys.find("new", "ES256")
    with pytest.raises(Unauthenticated):
        await keys.find("ec", "ES256")
    assert issuer.asked == 2


async def test_an_issuer_that_never_answered_is_503(make_api: MakeApi, tmp_path: Path) -> None:
    async with make_api(**settings(tmp_path / "missing")) as api:
        answer = await ask(api, token())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
