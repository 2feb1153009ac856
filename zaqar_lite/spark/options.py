"""Every option of the data source in one place: its type, its bounds and its default.

Spark gives option names in lower case and all values as text. Names here are those of the guide,
in snake case.
"""

import datetime as dt
import functools
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta, Struct

from zaqar_lite.client import (
    Auth,
    Client,
    KeyAuth,
    KeystoneAuth,
    Resend,
    RetryPolicy,
    SignedAuth,
    ZaqarError,
)
from zaqar_lite.client.auth import tls_context
from zaqar_lite.client.endpoints.requests import PAGE
from zaqar_lite.environment import client_value

ExtraColumn = Literal["value", "timestamp", "key", "group", "attempts", "failure_count"]
"""Columns that a read has where the option `columns` names them."""
NotNegative = Annotated[float, Meta(ge=0, le=1e6)]
ClaimSeconds = Annotated[int, Meta(ge=60, le=43_200)]

_MOST = 200
_allowed: dict[str, int] = {}


class OptionError(ValueError):
    """An option is unknown, missing or out of range; the text says which and what it may be."""


class Options(Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of a query: durations in seconds, sizes in bytes, the rate in messages/s."""

    endpoint: str
    project: str | None = None
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    client_id: str | None = None
    page_size: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout: NotNegative = 60.0
    include_claimed: bool = True
    include_delayed: bool = True
    include_body: bool = True
    num_partitions: Annotated[int, Meta(ge=1, le=1_000)] = 2
    pushdown: bool = False
    batch_size: Annotated[int, Meta(ge=1, le=10_000)] = 100
    batch_bytes: Annotated[int, Meta(ge=1_024, le=1 << 30)] = 262_144
    concurrency: Annotated[int, Meta(ge=1, le=256)] = 8
    rate: NotNegative = 0.0
    hosts: Annotated[int, Meta(ge=1, le=100_000)] = 1
    ttl: Annotated[int, Meta(ge=60)] | None = None
    delay: Annotated[int, Meta(ge=0)] | None = None
    body_format: Literal["json", "text"] = "json"
    on_invalid_row: Literal["fail", "skip", "deadletter"] = "fail"
    on_ignored_delay: Literal["fail", "warn"] = "fail"
    dead_letter_queue: str | None = None
    run_id: str | None = None
    keys: Literal["rows", "requests", "none"] = "rows"
    idempotency_key: str | None = None
    report_path: str | None = None
    reject_path: str | None = None
    mode: Literal["browse", "claim"] = "browse"
    state_dir: str | None = None
    starting_position: str = "earliest"
    min_messages_per_trigger: Annotated[int, Meta(ge=1, le=10_000_000)] = 1
    max_messages_per_trigger: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    max_trigger_delay: NotNegative = 900.0
    columns: tuple[ExtraColumn, ...] = ()
    retry_timeout: NotNegative = 10.0
    key_file: str | None = None
    signed_file: str | None = None
    cloud: str | None = None
    ca_file: str | None = None
    fail_on_data_loss: bool = True
    fail_on_missing_queue: bool = True
    claim_ttl: ClaimSeconds = 600
    claim_grace: ClaimSeconds = 60
    claim_renewal: NotNegative = 0.0

    @property
    def place(self) -> str:
        """Return where the queues are, for an error."""
        return f"the project {self.project!r}" if self.project else "the default project"

    @property
    def queue(self) -> str:
        """Return the one queue that the options name.

        Raises:
            OptionError: none was, or several.
        """
        if len(self.queues) != 1:
            raise OptionError("Name exactly one queue with the option 'queue'.")
        return self.queues[0]

    def client(self, *, on_retry: Callable[[Resend], object] | None = None) -> Client:
        """Open a client; it belongs to the process that opened it, never to a pickled object.

        Its `page_size` is the option's, or 200 where the server allows so many; `on_retry` is told
        of each request that is sent again.

        Raises:
            OptionError: a file that proves who asks can't be read.
        """
        try:
            auth: Auth | None = None
            if self.signed_file is not None:
                auth = SignedAuth.from_file(self.signed_file)
            elif self.cloud is not None:
                auth = KeystoneAuth.cloud(self.cloud)
            elif self.key_file is not None:
                auth = KeyAuth(Path(self.key_file).read_text(encoding="utf-8"))
            elif key := client_value("KEY"):
                auth = KeyAuth(key)
            trusted = None if self.ca_file is None else tls_context(self.ca_file)
        except (OSError, ValueError, ImportError, ZaqarError) as error:
            raise OptionError(f"Can't prove who asks, or trust the server: {error}") from error
        open_client = functools.partial(
            Client,
            self.endpoint,
            project=None if isinstance(auth, SignedAuth | KeystoneAuth) else self.project,
            client_id=self.client_id,
            timeout=self.timeout,
            auth=auth,
            ssl_context=trusted,
            release_on_sigterm=False,
            on_warning=lambda warning: _log_once(warning.description or warning.title),
        )
        return open_client(
            page_size=self.page_size or _page_size(self.endpoint, open_client),
            retries=_retries(self.retry_timeout, on_retry),
        )


msgspec.json.Decoder(Options)  # msgspec learns it here, where no other thread can meet it
_NAMES = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(Options)}
_NAMES |= {"queue": "queue", "path": "path"}  # other names of `queues`


def parse(given: Mapping[str, str]) -> Options:
    """Read the options of a query.

    Raises:
        OptionError: says which option is wrong, and what it may be.
    """
    values: dict[str, str] = {}
    for name, value in given.items():
        known = name.lower().replace("_", "")
        if known == "checkpointlocation":
            continue  # Spark's own
        if known not in _NAMES:
            raise OptionError(f"Unknown option {name!r}; there are {', '.join(_NAMES.values())}.")
        values[_NAMES[known]] = str(value)
    endpoint = values.get("endpoint") or client_value("URL")
    if not endpoint:
        raise OptionError(
            "Say where the server is: the option 'endpoint', a URL, or ZAQAR_LITE_URL."
        )
    queues = [values.pop(name, "") for name in ("queues", "queue", "path")]
    project = values.get("project") or client_value("PROJECT")
    typed: dict[str, object] = {**values, "endpoint": endpoint, "project": project}
    typed["queues"] = _split(next(filter(None, queues), ""))
    typed["columns"] = _split(values.get("columns", ""))
    for name in ("reportPath", "rejectPath"):
        if name in values:
            typed[name] = local_path(name, values[name])
    try:
        options = msgspec.convert(typed, Options, strict=False)
    except msgspec.ValidationError as error:
        raise _explained(error, values | typed) from None
    _check(options)
    return options


def _explained(error: msgspec.ValidationError, given: Mapping[str, object]) -> OptionError:
    """Return an error that names the option, and says what it may be."""
    text, _, place = str(error).partition(" - at `$.")
    name = re.split(r"\W", place)[0]
    needed = text.partition(", got ")[0].removeprefix("Expected ").replace(" | null", "")
    if text.startswith("Invalid enum value"):
        kinds = {one.encode_name: one.type for one in msgspec.structs.fields(Options)}
        words = get_args(ExtraColumn if name == "columns" else kinds[name])
        needed = f"one of {', '.join(words)}"
    return OptionError(f"The option {name!r} must be {needed}, not {given[name]!r}.")


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def local_path(name: str, text: str) -> str:
    """Return a path on this machine, given as such or as a `file:` URI; OptionError for another."""
    parts = urlsplit(text)
    if parts.scheme not in {"", "file"}:
        raise OptionError(f"The option {name!r} is written on the machine itself, not {text!r}.")
    return unquote(parts.path) if parts.scheme else text


def _check(options: Options) -> None:
    """Refuse options that contradict each other."""
    if options.starting_position not in {"earliest", "latest"}:
        try:
            dt.datetime.fromisoformat(options.starting_position)
        except ValueError:
            raise OptionError(
                "The option 'startingPosition' must be earliest, latest or an instant in "
                f"ISO 8601, not {options.starting_position!r}."
            ) from None
    if options.queue_pattern is not None and (options.queues or options.mode == "claim"):
        raise OptionError(
            "The option 'queuePattern' stands for 'queue' and 'queues' where queues are browsed; a "
            "claim stream has one queue, which is named."
        )
    if sum(map(bool, (options.key_file, options.signed_file, options.cloud))) > 1:
        raise OptionError("Give one of 'keyFile', 'signedFile' and 'cloud'.")
    if options.on_invalid_row == "deadletter" and not options.dead_letter_queue:
        raise OptionError("onInvalidRow=deadletter needs the option 'deadLetterQueue'.")
    if options.keys == "requests" and options.on_invalid_row != "fail":
        raise OptionError(
            "keys=requests needs onInvalidRow=fail: what is stored without the refused rows is not "
            "the request that a key stands for. Take keys=rows."
        )
    if options.mode == "claim" and not options.state_dir:
        raise OptionError(
            "mode=claim needs the option 'stateDir': a directory beside the checkpoint that the "
            "driver finds again after a restart."
        )


def _retries(seconds: float, on_retry: Callable[[Resend], object] | None = None) -> RetryPolicy:
    """Return a policy that keeps trying for about so many seconds.

    The first tries come sooner than an interactive client's. No wait is long: the first request of
    a task to give up ends it, and one long random wait may be over at once.
    """
    base, cap = 0.02, 1.0
    attempts, waited = 1, 0.0
    while waited < seconds:
        waited += min(cap, base * 2 ** min(attempts - 1, 30)) / 2
        attempts += 1
    return RetryPolicy(attempts=attempts, base=base, cap=cap, on_retry=on_retry)


_log_once = functools.cache(logging.getLogger(__name__).warning)
"""Log a server's warning once for each process: a task sends thousands of requests."""


def _page_size(endpoint: str, open_client: Callable[..., Client]) -> int:
    """Return the page size where the option is not given; ask each server once a process."""
    if endpoint not in _allowed:
        try:
            with open_client(retries=RetryPolicy(attempts=1)) as client:
                resources = client.home()["resources"]
            hints = [resources[name]["hints"] for name in ("rel/messages", "rel/post_claim")]
            allowed = [int(one.get("max-large-limit", one["max-limit"])) for one in hints]
            _allowed[endpoint] = min(_MOST, *allowed)
        except ZaqarError:  # the next request meets the same error, and reports it
            return PAGE
        except (KeyError, TypeError, ValueError):  # it does not tell
            _allowed[endpoint] = PAGE
    return _allowed[endpoint]
