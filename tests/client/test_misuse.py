"""Wrong arguments: each raises at once and says what was meant, on every public signature."""

import asyncio
import collections.abc
import dataclasses
import datetime as dt
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from zaqar_lite.client import (
    AsyncClient,
    ClaimOptions,
    Client,
    Message,
    PostOptions,
    Queue,
    QueueOptions,
    Reject,
    Retry,
    RetryPolicy,
    Settlement,
    Worker,
    WorkerOptions,
    worker,
)
from zaqar_lite.client.endpoints.dead_letters import RedriveOptions

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there: what is not refused by the SDK itself is Unreachable."""
ONCE = RetryPolicy(attempts=1)
RIGHT: Mapping[str, Any] = {"act": "cancel", "count": 2, "limit": 1, "metadata": {}}
"""Arguments that a method needs, where a name is not a right value for them."""
NEEDED: Mapping[str, Mapping[str, Any]] = {"edit": {"ttl": 60}, "delete_messages": {"force": True}}
"""Optional arguments without which a method does nothing."""
SAID = {"items": "post_all takes", "batch": "post_batch takes"}
"""What the text says instead of the name of the argument."""


def kinds(annotation: Any) -> set[Any]:
    """Return the parts of an annotation, without their own arguments."""
    union = isinstance(annotation, types.UnionType) or (
        typing.get_origin(annotation) is typing.Union
    )
    parts = typing.get_args(annotation) if union else (annotation,)
    return {typing.get_origin(part) or part for part in parts}


def wrong(found: set[Any]) -> Any:
    """Return a value that is none of these kinds but would pass for one; `...` for no such."""
    lists = {collections.abc.Iterable, collections.abc.AsyncIterable, collections.abc.Sequence}
    for several, value in (
        ({object, Any}, ...),
        ({dt.datetime}, "2030-12-24T18:00:00Z"),
        ({collections.abc.Callable, str}, 5),
        ({*lists, Mapping}, "abc"),
        ({int, float}, "5"),
    ):
        if found & several:
            return value
    return ...


def methods() -> list[tuple[str, str]]:
    """Return each method of the clients with each of its arguments that can be wrong."""
    found = []
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if name.startswith("_") or name in {"call", "close", "encode"}:
            continue
        if "Jobs" in method.__qualname__:
            continue  # these take what the API takes, which the server judges
        hints = typing.get_type_hints(method)
        for argument, parameter in inspect.signature(method).parameters.items():
            plain = parameter.kind is not inspect.Parameter.VAR_KEYWORD and argument != "self"
            if plain and argument not in LAX and wrong(kinds(hints[argument])) is not ...:
                found.append((name, argument))
    return found


# What goes into a query or a JSON document as it is: the server refuses a wrong one by its name.
LAX = {
    *("start", "description", "uri", "flavor", "state", "name"),
    *("weight", "project"),
}


def carry_out(result: Any) -> None:
    """Drive what a method returned until it would do something."""
    if isinstance(result, collections.abc.Iterator):
        next(result)
    elif hasattr(result, "__enter__"):
        result.__enter__()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("name", "argument"), methods())
def test_a_method_refuses_a_wrong_argument_by_its_name(
    kind: type[Client | AsyncClient], name: str, argument: str
) -> None:
    method = getattr(Client, name)
    hints = typing.get_type_hints(method)
    given: dict[str, Any] = {**NEEDED.get(name, {})}
    for one, parameter in inspect.signature(method).parameters.items():
        if parameter.default is inspect.Parameter.empty and one not in {"self", "limits", "plan"}:
            names = kinds(hints[one]) & {collections.abc.Iterable, collections.abc.AsyncIterable}
            given[one] = RIGHT.get(one, ["a"] if names else "a")
    given[argument] = wrong(kinds(hints[argument]))

    async def attempt() -> None:
        async with AsyncClient(NOWHERE, retries=ONCE) as client:
            result = getattr(client, name)(**given)
            if inspect.isawaitable(result):
                await result
            elif hasattr(result, "__aenter__"):
                await result.__aenter__()
            else:
                await anext(aiter(result))

    with pytest.raises(TypeError) as raised:  # noqa: PT012 - the two clients differ in how it is run
        if kind is AsyncClient:
            asyncio.run(attempt())
        else:
            with Client(NOWHERE, retries=ONCE) as client:
                carry_out(getattr(client, name)(**given))
    assert SAID.get(argument, "id" if argument.endswith("_id") else argument) in str(raised.value)


OPTIONS: tuple[type[Any], ...] = (
    *(ClaimOptions, PostOptions, RedriveOptions, WorkerOptions, QueueOptions, RetryPolicy),
)


def fields() -> list[tuple[type[Any], str]]:
    """Return each field of the dataclasses of options that can be wrong."""
    return [
        (kind, field.name)
        for kind in OPTIONS
        for field in dataclasses.fields(kind)
        if wrong(kinds(field.type)) is not ...
    ]


@pytest.mark.parametrize(("kind", "field"), fields())
def test_options_refuse_what_is_not_of_their_kind(kind: type[Any], field: str) -> None:
    given = wrong(kinds(next(one.type for one in dataclasses.fields(kind) if one.name == field)))
    with pytest.raises(TypeError, match=rf"^{field} takes "):
        kind(**{field: given})


def refuse(*_: object) -> None:
    """Handle no message."""
    raise AssertionError


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": 8888}, "url takes the address"),
        ({"project": 5}, "project takes a string"),
        ({"key": b"zq_1_secret"}, "key takes a string, not bytes"),
        ({"client_id": 5}, "client_id takes a UUID"),
        ({"auth": "zq_1_secret"}, r"KeyAuth\(...\); a key alone goes into key="),
        ({"retries": 3}, r"retries takes a policy, such as RetryPolicy\(attempts=3\), not int"),
        ({"timeout": "60"}, "timeout takes a number of seconds"),
        ({"timeout": dt.timedelta(seconds=60)}, "timeout takes a number of seconds"),
        ({"page_size": "20"}, "page_size takes a whole number"),
        ({"connections": 1.5}, "connections takes a whole number"),
        ({"ssl_context": "ca.pem"}, "ssl_context takes an ssl.SSLContext"),
        ({"release_on_sigterm": "no"}, "release_on_sigterm takes True or False"),
        ({"encoder": "json"}, "encoder takes a function"),
        ({"on_warning": "ignore"}, "on_warning takes a function"),
        ({"tracing": True}, r"tracing takes zaqar_lite.client.tracing.Tracing\(...\)"),
    ],
)
def test_a_client_refuses_a_wrong_setting(
    kind: type[Client | AsyncClient], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said) as raised:
        kind(**{"url": NOWHERE, **given})
    assert "zq_1_secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        # With a page size of 0 every bulk delete would do nothing, in silence.
        (functools.partial(Client, NOWHERE), ("timeout", "page_size", "connections")),
        (PostOptions, ("batch_size", "batch_bytes", "in_flight", "rate")),
        (WorkerOptions, ("concurrency", "batch", "time_limit")),
        (ClaimOptions, ("renew_every",)),
        (RetryPolicy, ("attempts",)),
    ],
)
def test_nothing_is_refused_as_a_number(kind: Callable[..., object], names: list[str]) -> None:
    for name in names:
        with pytest.raises(ValueError, match=f"{name} must be (above 0|at least 1)"):
            kind(**{name: 0})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: worker(refuse), r'write @worker\("orders"\)'),  # type: ignore[arg-type]
        (lambda: worker(5), "queue is a string, not int"),  # type: ignore[arg-type]
        (lambda: worker("a")("b"), "worker takes a handler"),  # type: ignore[arg-type]
        (lambda: Worker(refuse, refuse, WorkerOptions()), "queue is a string"),  # type: ignore[arg-type]
        (lambda: worker("a", middleware=refuse), "middleware takes a list"),  # type: ignore[arg-type]
        (lambda: worker("a", concurrency="8"), "concurrency takes a whole"),  # type: ignore[arg-type]
        (lambda: Retry("http_503"), r"after takes a number .* reason="),  # type: ignore[arg-type]
        (lambda: Retry(dt.timedelta(seconds=5)), "after takes a number"),  # type: ignore[arg-type]
        (lambda: Reject(404), "reason takes a string"),  # type: ignore[arg-type]
        (lambda: Settlement.delete(5), "message is a string, not int"),  # type: ignore[arg-type]
        (lambda: Settlement.extend("a", "60"), "ttl is a whole number"),  # type: ignore[arg-type]
    ],
)
def test_a_worker_refuses_a_wrong_argument(call: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call()


def test_what_has_a_name_or_an_id_is_not_taken_for_it() -> None:
    message = Message("a", "an-id", body=1, ttl=60, age=0, href="")
    with Client(NOWHERE) as client:
        with pytest.raises(TypeError, match="did you mean its `name`"):
            client.stats(Queue("a", "/v2/queues/a"))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="did you mean its `id`"):
            client.delete_message("a", message)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="did you mean its `id`"):
            client.delete_messages("a", [message], force=True)  # type: ignore[list-item]


def test_a_negative_time_is_refused_before_it_is_sent() -> None:
    """A normal queue ignores every delay, so the server would not say that this one is wrong."""
    client = Client(NOWHERE, retries=ONCE)
    for call in (
        lambda: client.post("q", "body", ttl=-1),
        lambda: client.post("q", "body", delay=-1),
        lambda: client.edit("q", "id", delay=-1),
        lambda: client.release_claim("q", "id", delay=-1),
        lambda: client.update_subscription("q", "id", ttl=-1),
        lambda: client.subscribe("q", "http://receiver.example/", ttl=-1),
        lambda: client.renew_claim("q", "id", ttl=-1),
    ):
        with pytest.raises(ValueError, match=r"^(ttl|delay) can't be negative; it is -1$"):
            call()
