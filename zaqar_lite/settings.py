"""One typed value with all settings; nothing else reads the environment.

Limits have upstream's names and defaults. `loading` reads them.
"""

import ipaddress
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import UNLIMITED, Quota

_TEN_YEARS = 315_360_000


class Settings(BaseModel):
    """Everything that can be set; seconds and bytes unless the name says otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8888, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(1, ge=1, le=256, description="Server processes.")
    store: str = Field(
        "embedded:zaqar-lite-data", repr=False, description="URI of the message store."
    )
    management_store: str | None = Field(
        None,
        repr=False,
        description="URI of the store of the queues' records; the message store when not set.",
    )
    store_options: dict[str, Any] = Field(
        {}, repr=False, description="Options of the store's driver, by name."
    )
    auth: str = Field(
        "none",
        description="How clients authenticate: none (headers are trusted), or a comma list of "
        "keys, jwt and keystone.",
    )
    role_defaults: Literal["zaqar", "secure"] = Field(
        "zaqar",
        description="Which roles may do what: Zaqar's rules, or reader, member and manager.",
    )
    policy_file: Path | None = Field(
        None, description="policy.yaml with rules for tokens, instead of the defaults."
    )
    jwt_issuer: str | None = Field(None, description="Issuer of accepted tokens (claim iss).")
    jwt_audience: str | None = Field(None, description="Audience of its tokens (claim aud).")
    jwt_keys: str | None = Field(None, description="URL or file of the issuer's JWKS.")
    jwt_project_claim: str = Field("project_id", description="Claim that names the project.")
    jwt_roles_claim: str = Field("roles", description="Claim that holds the roles.")
    keystone_url: str | None = Field(None, description="Keystone's URL, as this server reaches it.")
    keystone_public_url: str | None = Field(
        None, description="Keystone's URL as shown to clients; where it is reached when not set."
    )
    keystone_cloud: str | None = Field(
        None,
        description="Entry of clouds.yaml with the account that checks tokens, and how Keystone is "
        "reached; without an account each token checks itself.",
    )
    keystone_believed_for: int = Field(
        60,
        ge=0,
        le=300,
        description="How long a token counts without a new check, even if revoked.",
    )
    admin_key_file: Path | None = Field(
        None, description="File of the first key; admin.key in the data directory when not set."
    )
    encryption_key_file: Path | None = Field(
        None,
        description="Keys of encrypted queues: a file of lines ID:BASE64, the current one first.",
    )
    max_failed_logins: int = Field(
        60, ge=1, le=1_000_000, description="Failed logins of an address in a minute; 429 above."
    )
    tls_cert: Path | None = Field(
        None, description="Certificate chain (PEM); with it the server speaks TLS."
    )
    tls_key: Path | None = Field(None, description="Private key of the certificate (PEM).")
    tls_client_ca: Path | None = Field(
        None, description="CA of the certificates that clients must have (PEM)."
    )
    admin_mode: bool = Field(
        False, description="Serve the admin routes (health, quotas, pools, flavors)."
    )
    pooling: bool = Field(
        False, description="Keep queues in pools; the store takes those that no pool fits."
    )
    drain_wait: float = Field(
        5.0,
        ge=0.1,
        le=600,
        description="Seconds after which all processes know that a queue leaves its pool.",
    )
    sqs: bool = Field(
        False, description="Serve the JSON protocol of Amazon SQS too, on the same port."
    )
    ui: bool = Field(
        True, description="Serve the page /ui/ on loopback, or with sign-in by key or token."
    )
    trust_headers: bool = Field(
        False, description="Accept unauthenticated clients on an address that is not loopback."
    )
    gateways: str = Field(
        "", description="Networks from which gateways call (10.1.2.3/32); comma list."
    )
    gateway_secret: str | None = Field(
        None,
        repr=False,
        description="Secret of 32 bytes or more that a gateway sends; comma list to replace it.",
    )
    gateway_names: str = Field(
        "", description="Names (SAN) of which a gateway's certificate must have one; comma list."
    )
    allowed_hosts: str = Field(
        "", description="Names in Host that loopback accepts besides its own; comma list, or '*'."
    )
    audit: str | None = Field(
        None,
        description="Log of managing acts: a file, stderr, queue:NAME or queue:PROJECT/NAME.",
    )
    access_log: bool = Field(False, description="Log a line for each request.")
    keep_alive: float = Field(
        75.0, ge=1, le=3_600, description="Seconds that a connection stays open after an answer."
    )
    trace_endpoint: str | None = Field(
        None, description="OTLP/HTTP URL to which spans of requests are sent (.../v1/traces)."
    )
    trace_share: float = Field(
        0.01, ge=0, le=1, description="Share of the requests without a traceparent that are traced."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged; debug adds a line for each 4xx and 5xx."
    )
    enable_checksum: bool = Field(False, description="Show an MD5 checksum with each message.")
    signed_url_secret_key: str | None = Field(
        None,
        repr=False,
        description="Key of 32 bytes or more that signs pre-signed URLs; there are none without.",
    )
    signed_url_key_file: Path | None = Field(
        None,
        description="Keys of pre-signed URLs with ids: a file of lines ID:KEY, the current one "
        "first; all of them verify.",
    )
    client_id_uuid_safe: Literal["strict", "off"] = Field(
        "strict", description="Whether a Client-ID must be a UUID."
    )
    shutdown_timeout: int = Field(
        25, ge=1, le=3_600, description="How long a stop waits for requests in progress."
    )
    drain_delay: float = Field(
        0.0, ge=0, le=300, description="How long a stop still serves while /readyz answers 503."
    )
    request_timeout: float = Field(
        60.0, gt=0, le=3_600, description="Silence after which a request or a reader is dropped."
    )
    require_confirmation: bool = Field(
        False, description="Deliver to a subscriber only after it has confirmed."
    )
    public_url: str | None = Field(
        None, description="URL of this server as subscribers see it, for requests to confirm."
    )
    delivery_allowed: str = Field(
        "",
        description="Networks (10.1.0.0/16, 10.1.2.3/32:8080) and host names that webhooks may "
        "reach although they are not public; comma list.",
    )
    smtp_url: str | None = Field(
        None,
        repr=False,
        description="Mail server for mailto: subscribers: smtp://USER:PASSWORD@HOST:PORT with "
        "STARTTLS, smtps:// with TLS, smtp+plain:// with neither; without it no mail is sent.",
    )
    smtp_sender: str | None = Field(None, description="Sender address of all mails.")
    websocket_port: int | None = Field(
        None, ge=1, le=65_535, description="Port for WebSockets alone, at /."
    )
    max_connections: int = Field(
        4_096, ge=1, le=1_000_000, description="Connections to one process; 503 above."
    )
    clock_offset_file: Path | None = Field(
        None, description="File with milliseconds to add to the clock; for tests, on loopback only."
    )
    idempotency_window: int = Field(
        600, ge=1, le=1_209_600, description="How long an idempotency key is remembered."
    )
    max_idempotency_keys: int = Field(
        6_000_000, ge=1, le=100_000_000, description="Idempotency keys of a queue; 503 above."
    )
    max_messages_per_queue: int = Field(
        10_000_000, ge=1, le=1_000_000_000, description="Messages in a queue; 503 above."
    )
    max_wait: int = Field(60, ge=0, le=3_600, description="Longest wait of a request for messages.")
    max_waiters_per_project: int = Field(
        1_000, ge=0, le=100_000, description="Waiting requests of a project; 429 above."
    )
    quotas: dict[str, int] = Field({}, description="Default quotas of a project, by their names.")
    max_filters_per_project: int = Field(
        100, ge=0, le=1_000, description="Queues of a project with a filter."
    )
    default_message_ttl: int = Field(
        3600, ge=60, le=_TEN_YEARS, description="Ttl of a message that is posted without one."
    )
    max_messages_per_page: int = Field(20, ge=1, le=1_000, description="Most messages on a page.")
    max_messages_per_claim_or_pop: int = Field(
        20, ge=1, le=1_000, description="Most messages of a claim or a pop."
    )
    max_large_page: int = Field(
        1_000,
        ge=1,
        le=1_000,
        description="Most messages of a page, claim or pop that asks with large=true.",
    )
    max_queue_metadata: int = Field(
        65_536, ge=1, le=262_144, description="Bytes of a queue's metadata."
    )
    max_messages_post_size: int = Field(262_144, ge=1, le=1_048_576, description="Bytes of a post.")
    max_message_ttl: int = Field(
        1_209_600, ge=60, le=_TEN_YEARS, description="Longest ttl of a message."
    )
    max_message_delay: int = Field(
        900, ge=0, le=_TEN_YEARS, description="Longest delay of a message."
    )
    max_claim_ttl: int = Field(43_200, ge=60, le=_TEN_YEARS, description="Longest ttl of a claim.")
    message_delete_with_claim_id: bool = Field(
        False, description="Whether a bulk delete needs claim ids."
    )

    def limits(self) -> Limits:
        """The limits as the domain's value; those that are no settings have their defaults."""
        names = [one.name for one in fields(Limits) if one.name in type(self).model_fields]
        return Limits(**{name: getattr(self, name) for name in names})

    @property
    def default_quota(self) -> Quota:
        """The quotas of a project that has none of its own."""
        return UNLIMITED.changed(self.quotas)

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names that a request's Host may have besides those of loopback; None means any.

        If nobody authenticates, a page of another site could otherwise have its own name resolved
        to this machine, and use the API through the browser.
        """
        return None if not self.is_loopback or self.providers else self.origins

    @property
    def origins(self) -> frozenset[str] | None:
        """The hosts whose pages may open a WebSocket where nobody authenticates; None means any."""
        names = frozenset(comma_list(self.allowed_hosts.lower()))
        return None if "*" in names else names

    @property
    def providers(self) -> tuple[str, ...]:
        """The ways in which clients authenticate, in their order; empty if headers are trusted."""
        names = tuple(name.strip() for name in self.auth.split(","))
        return () if names == ("none",) else names

    @property
    def names_gateways(self) -> bool:
        """Whether only gateways that prove themselves are trusted."""
        return bool(self.gateway_secret or self.gateway_names)

    @property
    def data_directory(self) -> Path:
        """The directory for other files than queues: the embedded store's, or ./zaqar-lite-data."""
        _, _, rest = self.store.partition(":")
        path = urlsplit(f"file:{rest}").path if self.keeps_files else ""
        return Path(unquote(path) or "zaqar-lite-data")

    @property
    def keeps_files(self) -> bool:
        """Whether the store's files lie on a disk of this machine, in `data_directory`."""
        scheme = self.store.partition(":")[0]
        return scheme in ("embedded", "opendata+sqlite", "opendata+slatedb")

    @property
    def needs_free_disk(self) -> bool:
        """Whether the store stops where its disk is full, because it keeps no reserve itself."""
        return self.store.startswith("opendata+slatedb:")

    @property
    def shows_page(self) -> bool:
        """Whether the page for people is served: never behind a gateway that authenticates."""
        if self.providers:
            return self.ui and not {"keys", "jwt"}.isdisjoint(self.providers)
        # The page's address names the project, so clients of the gateway would see other projects.
        is_behind_a_gateway = self.trust_headers or self.gateways or self.names_gateways
        return self.ui and self.is_loopback and not is_behind_a_gateway

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def comma_list(text: str) -> list[str]:
    """The entries of a setting that is a list."""
    return [entry for entry in (one.strip() for one in text.split(",")) if entry]
