"""Every option of the data source in one place: parsed, checked, with its default.

Spark gives option names in lower case and all values as text. Names here are those of the guide.
"""

import dataclasses
import datetime as dt
import functools
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from zaqar_lite.client import (
    Auth,
    Client,
    KeystoneAuth,
    RetryPolicy,
    ServerWarning,
    SignedAuth,
    ZaqarError,
)
from zaqar_lite.client.endpoints.queues import largest_page
from zaqar_lite.environment import client_value

InvalidRows = Literal["fail", "skip", "deadletter"]
Keys = Literal["rows", "requests", "none"]
KNOWN = (
    "endpoint", "project", "queue", "queues", "queuePattern", "clientId", "pageSize", "timeout",
    "includeClaimed", "includeDelayed", "includeBody", "numPartitions", "pushdown",
    "batchSize", "batchBytes", "concurrency", "rate", "hosts", "ttl", "delay", "bodyFormat",
    "onInvalidRow", "onIgnoredDelay", "deadLetterQueue", "runId", "keys",
    "idempotencyKey", "reportPath", "rejectPath", "mode", "stateDir", "startingPosition",
    "failOnDataLoss", "failOnMissingQueue",
    "maxMessagesPerTrigger", "claimTtl", "claimGrace", "claimRenewal", "path",
    "minMessagesPerTrigger", "maxTriggerDelay", "columns", "retryTimeout",
    "keyFile", "signedFile", "cloud", "caFile",
)  # fmt: skip


EXTRA = ("value", "timestamp", "key", "group", "attempts", "failure_count")
"""Columns that a read has where the option `columns` names them."""


def _retries(seconds: float) -> RetryPolicy:
    """Return a policy that keeps trying for about so many seconds on average.

    The first tries come sooner than an interactive client's: a task's other requests wait behind
    them.
    """
    policy = RetryPolicy(attempts=1, base=0.02)
    waited = 0.0
    while waited < seconds:
        waited += min(policy.cap, policy.base * 2 ** min(policy.attempts - 1, 30)) / 2
        policy = dataclasses.replace(policy, attempts=policy.attempts + 1)
    return policy


_logger = logging.getLogger(__name__)


@functools.cache
def _log(text: str) -> None:
    _logger.warning("%s", text)


def _once(warning: ServerWarning) -> None:
    """Log a server's warning once for each process: a task sends thousands of requests."""
    _log(warning.description or warning.title)


_MOST = 200
_allowed: dict[str, int] = {}


def _page_size(endpoint: str, open_client: Callable[..., Client]) -> int:
    """Return the page size where the option is not given; ask each server once a process."""
    if endpoint not in _allowed:
        try:
            with open_client(retries=RetryPolicy(attempts=1)) as client:
                _allowed[endpoint] = min(_MOST, client.call(largest_page()))
        except ZaqarError:  # the next request meets the same error, and reports it
            return 20
    return _allowed[endpoint]


class OptionError(ValueError):
    """An option is unknown, missing or out of range; the text says which and what it may be."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a query: durations in seconds, sizes in bytes, the rate in messages/s."""

    endpoint: str
    project: str = "default"
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    client_id: str | None = None
    page_size: int | None = None
    timeout: float = 60.0
    include_claimed: bool = True
    include_delayed: bool = True
    include_body: bool = True
    num_partitions: int = 2
    pushdown: bool = False
    batch_size: int = 100
    batch_bytes: int = 262_144
    concurrency: int = 8
    rate: float | None = None
    hosts: int = 1
    ttl: int | None = None
    delay: int | None = None
    body_format: Literal["json", "text"] = "json"
    on_invalid_row: InvalidRows = "fail"
    on_ignored_delay: Literal["fail", "warn"] = "fail"
    dead_letter_queue: str | None = None
    run_id: str | None = None
    keys: Keys = "rows"
    idempotency_key: str | None = None
    report_path: str | None = None
    reject_path: str | None = None
    mode: Literal["browse", "claim"] = "browse"
    state_dir: str | None = None
    starting_position: str = "earliest"
    min_messages_per_trigger: int = 1
    max_trigger_delay: float = 900.0
    columns: tuple[str, ...] = ()
    retry_timeout: float = 10.0
    key_file: str | None = None
    signed_file: str | None = None
    cloud: str | None = None
    ca_file: str | None = None
    fail_on_data_loss: bool = True
    fail_on_missing_queue: bool = True
    max_messages_per_trigger: int = 10_000
    claim_ttl: int = 600
    claim_grace: int = 60
    claim_renewal: float = 200.0

    def client(self) -> Client:
        """Open a client; it belongs to the process that opened it, never to a pickled object.

        Its `page_size` is the option's, or 200 where the server allows so many.

        Raises:
            OptionError: a file that proves who asks can't be read.
        """
        try:
            key = client_value("KEY") if self.auth_options == 0 else None
            if self.key_file is not None:
                key = Path(self.key_file).read_text(encoding="utf-8").strip()
            auth: Auth | None = None
            if self.signed_file is not None:
                auth = SignedAuth.from_file(self.signed_file)
            elif self.cloud is not None:
                auth = KeystoneAuth.cloud(self.cloud)
            trusted = self.ca_file and ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError, ImportError, ZaqarError) as error:
            raise OptionError(f"Can't prove who asks, or trust the server: {error}") from error
        open_client = functools.partial(
            Client,
            self.endpoint,
            project=self.project if auth is None else None,
            client_id=self.client_id,
            timeout=self.timeout,
            key=key,
            auth=auth,
            ssl_context=trusted or None,
            release_on_sigterm=False,
            on_warning=_once,
        )
        return open_client(
            page_size=self.page_size or _page_size(self.endpoint, open_client),
            retries=_retries(self.retry_timeout),
        )

    @property
    def auth_options(self) -> int:
        """Return how many options name a credential; more than one is a contradiction."""
        return sum(one is not None for one in (self.key_file, self.signed_file, self.cloud))

    @property
    def queue(self) -> str:
        """Return the one queue that the options name.

        Raises:
            OptionError: none was, or several.
        """
        if len(self.queues) != 1:
            raise OptionError("Name exactly one queue with the option 'queue'.")
        return self.queues[0]


def parse(given: Mapping[str, str]) -> Options:
    """Read the options of a query.

    Raises:
        OptionError: says which option is wrong, and what it may be.
    """
    names = {name.lower(): name for name in KNOWN}
    values: dict[str, str] = {}
    for name, value in given.items():
        known = name.lower().replace("_", "")
        if known == "checkpointlocation":
            continue  # Spark's own
        if known not in names:
            raise OptionError(f"Unknown option {name!r}; there are {', '.join(KNOWN)}.")
        values[names[known]] = str(value)
    reader = _Reader(values)
    endpoint = values.get("endpoint") or client_value("URL")
    if not endpoint:
        raise OptionError(
            "Say where the server is: the option 'endpoint', a URL, or ZAQAR_LITE_URL."
        )
    queues = values.get("queues") or values.get("queue") or values.get("path") or ""
    options = Options(
        endpoint=endpoint,
        project=values.get("project", "default"),
        queues=tuple(name.strip() for name in queues.split(",") if name.strip()),
        queue_pattern=values.get("queuePattern"),
        client_id=values.get("clientId"),
        page_size=reader.optional("pageSize", 1, 10_000),
        timeout=reader.number("timeout", 60.0),
        include_claimed=reader.flag("includeClaimed", default=True),
        include_delayed=reader.flag("includeDelayed", default=True),
        include_body=reader.flag("includeBody", default=True),
        num_partitions=reader.whole("numPartitions", 2, 1, 1_000),
        pushdown=reader.flag("pushdown", default=False),
        batch_size=reader.whole("batchSize", 100, 1, 10_000),
        batch_bytes=reader.whole("batchBytes", 262_144, 1_024, 1 << 30),
        concurrency=reader.whole("concurrency", 8, 1, 256),
        rate=reader.number("rate", 0.0) or None,
        hosts=reader.whole("hosts", 1, 1, 100_000),
        ttl=reader.optional("ttl", 60),
        delay=reader.optional("delay", 0),
        body_format=reader.choice("bodyFormat", "json", "text"),  # type: ignore[arg-type]
        on_invalid_row=reader.choice(  # type: ignore[arg-type]
            "onInvalidRow", "fail", "skip", "deadletter"
        ),
        on_ignored_delay=reader.choice(  # type: ignore[arg-type]
            "onIgnoredDelay", "fail", "warn"
        ),
        dead_letter_queue=values.get("deadLetterQueue"),
        run_id=values.get("runId"),
        keys=reader.keys(),
        idempotency_key=values.get("idempotencyKey"),
        report_path=reader.local("reportPath"),
        reject_path=reader.local("rejectPath"),
        mode=reader.choice("mode", "browse", "claim"),  # type: ignore[arg-type]
        state_dir=values.get("stateDir"),
        starting_position=reader.position(),
        min_messages_per_trigger=reader.whole("minMessagesPerTrigger", 1, 1, 10_000_000),
        max_trigger_delay=reader.number("maxTriggerDelay", 900.0),
        columns=reader.several("columns", *EXTRA),
        retry_timeout=reader.number("retryTimeout", 10.0),
        key_file=values.get("keyFile"),
        signed_file=values.get("signedFile"),
        cloud=values.get("cloud"),
        ca_file=values.get("caFile"),
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        fail_on_missing_queue=reader.flag("failOnMissingQueue", default=True),
        max_messages_per_trigger=reader.whole("maxMessagesPerTrigger", 10_000, 1, 10_000_000),
        claim_ttl=reader.whole("claimTtl", 600, 60, 43_200),
        claim_grace=reader.whole("claimGrace", 60, 60, 43_200),
        claim_renewal=reader.number("claimRenewal", 0.0),
    )
    if not options.claim_renewal:
        options = dataclasses.replace(options, claim_renewal=options.claim_ttl / 3)
    if options.queue_pattern is not None and (queues or options.mode == "claim"):
        raise OptionError(
            "The option 'queuePattern' stands for 'queue' and 'queues' where queues are browsed; a "
            "claim stream has one queue, which is named."
        )
    if options.auth_options > 1:
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
    return options


_KEYS: dict[str, Keys] = {
    "rows": "rows", "true": "rows", "requests": "requests", "none": "none", "false": "none",
}  # fmt: skip


class _Reader:
    """Typed access to option values; errors name the option."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        text = self._values.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise OptionError(f"The option {name!r} must be an integer, not {text!r}.") from None
        if not least <= value <= most:
            raise OptionError(f"The option {name!r} must be between {least} and {most}.")
        return value

    def optional(self, name: str, least: int, most: int = 1 << 31) -> int | None:
        return self.whole(name, least, least, most) if name in self._values else None

    def number(self, name: str, default: float) -> float:
        text = self._values.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            raise OptionError(f"The option {name!r} must be a number, not {text!r}.") from None
        if value < 0:
            raise OptionError(f"The option {name!r} must not be negative.")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        text = self._values.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise OptionError(f"The option {name!r} must be 'true' or 'false', not {text!r}.")
        return text == "true"

    def position(self) -> str:
        """Read `startingPosition`: earliest, latest, or an instant in ISO 8601."""
        text = self._values.get("startingPosition", "earliest")
        if text not in {"earliest", "latest"}:
            try:
                dt.datetime.fromisoformat(text)
            except ValueError:
                raise OptionError(
                    "The option 'startingPosition' must be earliest, latest or an instant in "
                    f"ISO 8601, not {text!r}."
                ) from None
        return text

    def several(self, name: str, *allowed: str) -> tuple[str, ...]:
        given = tuple(filter(None, (one.strip() for one in self._values.get(name, "").split(","))))
        if unknown := set(given) - set(allowed):
            raise OptionError(
                f"The option {name!r} may have {', '.join(allowed)}, not {min(unknown)!r}."
            )
        return given

    def local(self, name: str) -> str | None:
        """Read a path on this machine, or its `file:` URI."""
        text = self._values.get(name)
        parts = urlsplit(text or "")
        if parts.scheme not in {"", "file"}:
            raise OptionError(
                f"The option {name!r} is written on the machine itself, not {text!r}."
            )
        return unquote(parts.path) if parts.scheme else text

    def keys(self) -> Keys:
        """Read `keys`; true and false are the names that `rows` and `none` had first."""
        text = self._values.get("keys", "rows").lower()
        found: Keys | None = _KEYS.get(text)
        if found is None:
            raise OptionError(f"The option 'keys' must be rows, requests or none, not {text!r}.")
        return found

    def choice(self, name: str, *allowed: str) -> str:
        text = self._values.get(name, allowed[0])
        if text not in allowed:
            raise OptionError(f"The option {name!r} must be one of {', '.join(allowed)}.")
        return text
