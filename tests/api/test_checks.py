"""What a request is asked before its action: headers, names, paths, methods."""

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.api.conftest import Api, MakeApi, bearer
from tests.api.sockets import Raw
from tests.server import ServerProcess

pytestmark = pytest.mark.anyio


async def send(api: Api, method: str, path: str, **headers: str) -> httpx.Response:
    """Send exactly these headers."""
    request = api.http.build_request(method, path)
    request.headers = httpx.Headers(
        {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    )
    return await api.http.send(request)


UUID = "3381af922b9e11e3b19171861300734c"


NO_JSON = "406 Not Acceptable"
REFUSED = [
    ({}, 400, "Missing header value"),
    ({"client_id": ""}, 400, "Wrong UUID value"),
    ({"client_id": "no-uuid"}, 400, "Wrong UUID value"),
    ({"client_id": UUID}, 400, "Project-Id Missing"),
    ({"client_id": UUID, "x_project_id": ""}, 400, "Empty project header not allowed"),
    ({"client_id": UUID, "x_project_id": "~deliveries"}, 400, "Invalid header value"),
    ({"client_id": UUID, "x_project_id": "p" * 257}, 400, "Invalid queue identification"),
    ({"client_id": UUID, "accept": "application/xml"}, 406, NO_JSON),
    ({"accept": "application/xml"}, 406, NO_JSON),
    ({"accept": "application/json;q=0"}, 406, NO_JSON),
    ({"accept": "application/json;q=0, */*"}, 406, NO_JSON),
    ({"accept": "*/*, application/json;q=0"}, 406, NO_JSON),
    ({"accept": "*/*;q=0.000"}, 406, NO_JSON),
    ({"accept": "application/*;q=0, */*"}, 406, NO_JSON),
    ({"accept": "application/json;q=0, application/*"}, 406, NO_JSON),
]
UUIDS = (
    *(UUID, UUID.upper(), "3381af92-2b9e-11e3-b191-71861300734c"),
    *("{3381af92-2b9e-11e3-b191-71861300734c}", "urn:uuid:3381af92-2b9e-11e3-b191-71861300734c"),
)
ACCEPTED = (
    *("", "*/*", "application/*", "text/html, application/json;q=0.1", "application/json"),
    *("*/*;q=0, Application/JSON", "text/html, */*;q=0.1", "*/*;q=0, application/*"),
    *("application/json;q=0, application/json", "application/json, application/json;q=0"),
)


async def test_refuses_a_request_by_the_first_check_that_fails(api: Api) -> None:
    for headers, status, title in REFUSED:
        answer = await send(api, "GET", "/v2/queues/q/stats", **headers)
        assert (answer.status_code, answer.json()["title"]) == (status, title), headers
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["vary"] == "Accept"


async def test_takes_every_form_of_a_uuid_and_an_accept_header_that_admits_json(api: Api) -> None:
    project = "my project " * 18
    for client_id in UUIDS:
        named = {"client_id": client_id, "x_project_id": project}
        assert (await send(api, "GET", "/v2/ping", **named)).status_code == 204
    for accept in ACCEPTED:
        named = {"client_id": UUID, "x_project_id": project, "accept": accept}
        assert (await send(api, "GET", "/v2/queues", **named)).status_code == 200


async def test_the_project_header_wins_over_another_tenant_header(api: Api) -> None:
    for headers in ({"x_project_id": "p", "x_tenant_id": "t"}, {"x_tenant_id": "t"}):
        put = await send(api, "PUT", "/v2/queues/q", client_id=UUID, **headers)
        assert put.status_code == 201
        listed = await send(api, "GET", "/v2/queues", client_id=UUID, **headers)
        assert len(listed.json()["queues"]) == 1
    empty = await send(api, "GET", "/v2/queues", client_id=UUID, x_project_id="", x_tenant_id="t")
    assert empty.json()["title"] == "Empty project header not allowed"


async def test_refuses_a_project_that_is_not_utf_8(api: Api) -> None:
    """Read as Latin-1 it would be the project of somebody else, who is called so in UTF-8."""
    del api.http.headers["X-Project-ID"]
    for name in (b"X-Project-ID", b"X-Tenant-Id"):
        for value in (b"\xff", b"caf\xe9", b"\xed\xa0\x80"):
            answer = await api.http.get("/v2/queues", headers=[(name, value)])
            assert (answer.status_code, answer.json()["title"]) == (400, "Invalid header value")
        answer = await api.http.get("/v2/queues", headers=[(name, "caf\u00e9".encode())])
        assert answer.status_code == 200


OURS = ["localhost", "LOCALHOST:8888", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]:8888"]
OTHERS = [
    *("evil.example", "evil.example:8888", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("10.0.0.1", "127.0.0.1.1", "[::2]", "127.0.0.1@evil.example", "", "localhost:8888:1", "a b"),
    "\u0661\u0662\u0667.0.0.1",
]


async def test_on_loopback_host_must_be_a_name_of_loopback(api: Api) -> None:
    """A page of another site can have its name resolved to this machine."""
    for host in OURS:
        await api.expect(200, "GET", "/v2/queues", Host=host)
    for host in OTHERS:
        answer = await api.http.get("/v2/queues", headers=[(b"Host", host.encode())])
        assert (answer.status_code, answer.json()["title"]) == (400, "Invalid header value"), host
        assert "allowed_hosts" in answer.json()["description"]


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"allowed_hosts": "queue.example, evil.example"}, 200),
        ({"allowed_hosts": "queue.example"}, 400),
        ({"allowed_hosts": "*"}, 200),
        ({"trust_headers": True}, 400),
        ({"host": "0.0.0.0", "trust_headers": True, "clock_offset_file": None}, 200),  # noqa: S104
    ],
)
async def test_host_may_be_a_name_that_is_allowed(
    make_api: MakeApi, settings: dict[str, object], status: int
) -> None:
    async with make_api(**settings) as api:
        answer = await api.call("GET", "/v2/queues", Host="Evil.example:8888")
        assert answer.status_code == status


async def test_a_queue_has_a_name_of_few_characters(api: Api) -> None:
    asked = ("GET ", "PUT ", "GET /stats", "POST /messages", "POST /claims")
    for name in ("q" * 65, "a@b", "na\u00efve", "q%0A", "a b"):
        for method, suffix in (one.split(" ") for one in asked):
            post, title = {"messages": [{"body": 1}]}, "Invalid queue identification"
            await api.expect(400, method, f"/v2/queues/{name}{suffix}", post, title=title)
    for name in ("q" * 64, "a.b", "A-Z_09", "..a"):
        await api.expect(201, "PUT", f"/v2/queues/{name}")


async def test_an_unknown_path_is_404_and_options_need_no_checks(api: Api) -> None:
    for path in (
        *("/v3", "/v2/queues/", "/v2/queues/q/", "/v2/pools", "/v2/queues/q/messages/1/2"),
        *("/v2/health", "/v1/queues"),
    ):
        answer = await send(api, "GET", path)
        assert (answer.status_code, answer.json()) == (404, {"title": "404 Not Found"}), path
    answer = await send(api, "OPTIONS", "/v2/queues/q/messages")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["allow"] == "DELETE, GET, POST, OPTIONS"
    answer = await send(api, "POST", "/")  # the root needs no headers either
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, OPTIONS")


async def test_answers_405_after_the_checks_with_what_is_allowed(api: Api) -> None:
    answer = await api.expect(405, "HEAD", "/v2/queues/q")
    answer = await api.call("POST", "/v2/queues/q")
    assert answer.headers["allow"] == "DELETE, GET, PATCH, PUT, OPTIONS"
    assert answer.json() == {"title": "405 Method Not Allowed"}
    assert (await send(api, "POST", "/v2/queues/q")).status_code == 400


async def test_refuses_a_form_with_a_body_and_takes_one_without(api: Api) -> None:
    form = "application/x-www-form-urlencoded"
    await api.expect(400, "PUT", "", {"a": 1}, Content_Type=form, title="Invalid Content-Type")
    await api.expect(201, "PUT", "", Content_Type=form)


async def test_refuses_a_header_of_more_than_16_kib(api: Api) -> None:
    await api.expect(204, "GET", "/v2/ping", X_Trace="x" * 16_384)
    for size in (16_385, 65_536):
        said = {"title": "Request header too large", "says": f"'x-trace' has {size} bytes; 16384"}
        await api.expect(431, "GET", "/v2/ping", X_Trace="x" * size, **said)


async def test_gives_every_answer_an_id_of_its_own(api: Api) -> None:
    answers = [await api.call("GET", path) for path in ("/v2/ping", "/v2/queues", "/nope")]
    ids = {answer.headers["x-openstack-request-id"] for answer in answers}
    assert len(ids) == 3
    form = r"req-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(re.fullmatch(form, request_id) for request_id in ids)


async def test_checks_a_client_id_by_its_length_when_uuids_are_off(make_api: MakeApi) -> None:
    async with make_api(client_id_uuid_safe="off") as api:
        for length, status in ((9, 400), (10, 204), (36, 204), (37, 400)):
            client_id = "x" * length
            answer = await api.call("GET", "/v2/ping", Client_ID=client_id)
            assert answer.status_code == status


@pytest.mark.parametrize(
    "name", ["Client-ID", "X-Project-ID", "X-Tenant-Id", "URL-Paths", "Content-Type"]
)
async def test_refuses_a_header_that_is_sent_twice_and_could_say_two_things(
    api: Api, name: str
) -> None:
    """A gateway may look at the first of two project ids, and this server at the last."""
    twice = [(name, "one"), ("X-Trace", "a"), ("X-Trace", "b"), (name.lower(), "two")]
    answer = await api.http.get("/v2/ping", headers=twice)
    assert (answer.status_code, answer.json()["title"]) == (400, "Invalid header value")
    assert name.lower() in answer.json()["description"]
    assert (await api.http.get("/v2/ping", headers=twice[1:3])).status_code == 204


async def test_refuses_more_parameters_than_it_reads(api: Api) -> None:
    """The last of several counts, so none may be left out."""
    for extra, status in ((254, 200), (255, 400)):
        answer = await api.call("GET", "messages?" + "x=1&" * extra + "limit=5&echo=true")
        assert answer.status_code == status


async def test_drops_empty_parameters_and_takes_the_last_of_several(api: Api) -> None:
    await api.post(*({"body": n} for n in range(3)))
    assert len(await api.browse("echo=true&limit=")) == 3
    assert len(await api.browse("echo=false,true&limit=1,2")) == 2
    assert len(await api.browse("echo=true&limit=2&limit=1")) == 1


async def test_every_route_has_a_largest_body(make_api: MakeApi) -> None:
    """Also those that read none, and the limits are those of the settings."""
    settings = {"auth": "keys", "max_queue_metadata": 5_000, "max_messages_post_size": 6_000}
    async with make_api(**settings) as api:
        api.http.headers.update(bearer(api.operator))
        for method, path, largest, status, title in (
            ("PUT", "", 5_000, 400, "Invalid API request"),
            ("PATCH", "", 5_000, 400, "Invalid request body"),
            ("POST", "messages", 6_000, 400, "Invalid API request"),
            ("POST", "/v2/topics/t/messages", 6_000, 400, "Invalid API request"),
            ("PATCH", "messages/1", 6_000, 400, "Invalid API request"),
            *((*one, 4_096, 413, TOO_LARGE) for one in SMALL),
            *((*one, 65_536, 413, TOO_LARGE) for one in LARGE),
            ("POST", "/v2/keys", 16_384, 413, TOO_LARGE),
            ("POST", "claims/1/settle", 4_096 + 1_048_576, 413, TOO_LARGE),
        ):
            answer = await api.call(method, path, "x" * (largest - 1))  # and two quotes
            assert (answer.status_code, answer.json()["title"]) == (status, title), (method, path)
            assert f"{largest} are allowed" in answer.json()["description"], (method, path)


TOO_LARGE = "Request body too large"
SMALL = [("GET", ""), ("DELETE", "messages/1"), ("GET", "/v2/ping"), ("POST", "claims")]
LARGE = [
    *(("POST", "subscriptions"), ("PATCH", "subscriptions/1"), ("POST", "redrives")),
    *(("PUT", "/v2/schedules/a"), ("PATCH", "/v2/schedules/a")),
]


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[Raw]:
    """A connection to a server."""
    with Raw(server) as connection:
        yield connection


@pytest.mark.parametrize("name", [".", "..", "%2E", "%2e."])
@pytest.mark.parametrize(
    ("method", "suffix"), [("GET", ""), ("PUT", ""), ("GET", "/stats"), ("GET", "/messages")]
)
def test_a_queue_has_no_name_that_means_another_path(
    raw: Raw, name: str, method: str, suffix: str
) -> None:
    refused = raw.call(method, f"/v2/queues/{name}{suffix}")
    assert (refused.status, refused.json()["title"]) == (400, "Invalid queue identification")


@pytest.mark.parametrize(
    "path",
    [
        *("/v2/queues/q%2Fstats", "/v2/queues%2fq", "/v2%2Fqueues", "/no%2Fpe"),
        *("/v2/queues/q/messages/a%2fb", "/v2/queues/q/%2f/messages"),
    ],
)
def test_an_encoded_slash_is_refused(raw: Raw, path: str) -> None:
    """A gateway takes it for a part of a name, and this server would for the end of one."""
    refused = raw.call("GET", path)
    assert (refused.status, refused.json()["title"]) == (400, "Invalid API request")
    assert "%2F" in refused.json()["description"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/queues/%71", 200),  # q
        ("/v2/queues/q%252Fstats", 400),  # the name is q%2Fstats
        ("/v2/queues/%ff", 400),
        ("/v2/queues/q/messages?marker=a%2Fb", 200),
        ("/v2//queues", 404),
    ],
)
def test_other_encodings_are_read_once(raw: Raw, path: str, status: int) -> None:
    assert raw.call("GET", path).status == status
