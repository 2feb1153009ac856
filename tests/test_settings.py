"""Settings: sources, names, and values that exclude each other."""

from pathlib import Path
from typing import Any

import pytest

from zaqar_lite import environment
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.limits import Limits
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.settings import Settings


def test_later_sources_win(tmp_path: Path) -> None:
    config = tmp_path / "zaqar.toml"
    config.write_text('port = 1\nhost = "127.0.0.2"\nmax_message_delay = 5\n')
    settings = load(
        environment={
            "ZAQAR_LITE_CONFIG": str(config),
            "ZAQAR_LITE_PORT": "2",
            "ZAQAR_LITE_WORKERS": "2",
        },
        overrides={"workers": 3},
    )
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.2", 2, 3)
    assert settings.limits().max_message_delay == 5


def test_the_variables_that_kubernetes_sets_for_a_service_are_passed_over() -> None:
    """A pod beside a service `zaqar` or `zaqar-lite` gets all of these."""
    given = {"ZAQAR_LITE_STORE": "memory://"}
    for service in ("ZAQAR", "ZAQAR_LITE"):
        given |= {
            f"{service}_SERVICE_HOST": "10.96.0.7",
            f"{service}_SERVICE_PORT": "8888",
            f"{service}_SERVICE_PORT_HTTP": "8888",
            f"{service}_PORT": "tcp://10.96.0.7:8888",
            f"{service}_PORT_8888_TCP": "tcp://10.96.0.7:8888",
            f"{service}_PORT_8888_TCP_PROTO": "tcp",
            f"{service}_PORT_8888_TCP_PORT": "8888",
            f"{service}_PORT_8888_TCP_ADDR": "10.96.0.7",
        }
    settings = load(environment=given)
    assert (settings.store, settings.port) == ("memory://", Settings.model_fields["port"].default)
    assert load(environment={**given, "ZAQAR_LITE_PORT": "9000"}).port == 9000


@pytest.mark.parametrize("name", sorted(environment.CLIENT_NAMES))
def test_the_server_passes_over_what_clients_read(name: str) -> None:
    assert load(environment={f"ZAQAR_LITE_{name}": "x"}) == load(environment={})


def test_variables_with_a_prefix_of_0_2_0_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """A server that takes no notice would go on with an empty store of its own."""
    named = {"ZAQAR_STORE": "redis://h", "ZAQARLITE_QUOTAS__QUEUES": "1"}
    others = {"ZAQAR_PORT": "tcp://10.0.0.1:80", "ZAQAR_SERVICE_HOST": "h", "ZAQAR_LITE_PORT": "1"}
    assert load(environment=named | others).store == load(environment={}).store
    assert [record.args for record in caplog.records] == [
        ("ZAQAR_STORE", "STORE"),
        ("ZAQARLITE_QUOTAS__QUEUES", "QUOTAS__QUEUES"),
    ]


def test_two_underscores_lead_into_a_mapping() -> None:
    names = {"CREATE_INDEXES": "false", "MESSAGES_IN_MEMORY": "5", "COLLECTION_PREFIX": "a_"}
    given = {f"ZAQAR_LITE_STORE_OPTIONS__{name}": value for name, value in names.items()}
    assert load(environment=given).store_options == {
        "create_indexes": False,
        "messages_in_memory": 5,
        "collection_prefix": "a_",
    }


def test_a_variable_sets_one_entry_of_a_mapping_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "zaqar.toml"
    config.write_text("[store_options]\na = 1\nb = 2\n")
    given = {"ZAQAR_LITE_STORE_OPTIONS__B": "3"}
    assert load(environment=given, config=config).store_options == {"a": 1, "b": 3}


def test_a_limit_that_is_a_setting_has_the_same_default() -> None:
    settings, limits = load(environment={}), Limits()
    assert settings.limits() == limits
    assert len(Settings.model_fields) <= 72, "who needs another one says which one can go"


def test_a_setting_of_earlier_releases_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "zaqar.toml"
    config.write_text("max_ranges = 7\nport = 7\n")
    settings = load(environment={"ZAQAR_LITE_SWEEP_INTERVAL": "2"}, config=config)
    assert (settings.port, settings.limits().max_ranges) == (7, 1_000)
    assert [record.args for record in caplog.records] == [
        ("max_ranges", f"in {config}"),
        ("sweep_interval", "in the environment, with the prefix ZAQAR_LITE_"),
    ]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"ZAQAR_LITE_MAX_MESAGE_TTL": "1"}, ["max_mesage_ttl", "max_message_ttl"]),
        ({"ZAQAR_LITE_PORT": "many"}, ["port"]),
        ({"ZAQAR_LITE_MAX_MESSAGE_TTL": "59"}, ["max_message_ttl"]),
        (
            {"ZAQAR_LITE_MAX_MESSAGE_DELAY": "4000", "ZAQAR_LITE_MAX_MESSAGE_TTL": "3600"},
            ["max_message_delay (4000)", "max_message_ttl (3600)"],
        ),
        ({"ZAQAR_LITE_HOST": "0.0.0.0"}, ["--trust-headers"]),  # noqa: S104
        (
            {
                "ZAQAR_LITE_HOST": "::",
                "ZAQAR_LITE_TRUST_HEADERS": "1",
                "ZAQAR_LITE_CLOCK_OFFSET_FILE": "/x",
            },
            ["clock_offset_file"],
        ),
        ({"ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "k" * 31}, ["signed_url_secret_key", "31", "32"]),
        ({"ZAQAR_LITE_CONFIG": "/does/not/exist"}, ["/does/not/exist"]),
        (
            {"ZAQAR_LITE_STORE_OPTIONS": "x", "ZAQAR_LITE_STORE_OPTIONS__Y": "1"},
            ["store_options", "dictionary"],
        ),
        ({"ZAQAR_LITE_COORDINATION_URL": "y"}, ["is one of store_options now"]),
    ],
)
def test_says_what_is_wrong(environment: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environment=environment)
    for word in words:
        assert word in str(caught.value)


KEYSTONE = {"auth": "keystone", "keystone_url": "http://127.0.0.1:5000"}
ISSUER = {"auth": "jwt", "jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": "file"}
SECRET = "not to be seen in any message, at all"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        *(({**KEYSTONE, "keystone_url": url}, "keystone_url") for url in (None, "id:5000")),
        ({**KEYSTONE, "keystone_cloud": "no such entry"}, "no such entry"),
        ({**KEYSTONE, "keystone_believed_for": 301}, "keystone_believed_for"),
        *(({**ISSUER, name: None}, name) for name in ISSUER if name != "auth"),
        ({"tls_cert": "a"}, "go together"),
        ({"tls_key": "a"}, "go together"),
        ({"tls_client_ca": "a"}, "needs TLS"),
        ({"gateway_secret": "short"}, "gateway_secret needs 32"),
        ({"gateway_names": "a"}, "tls_client_ca"),
        ({"gateway_secret": SECRET, "auth": "keys"}, "auth none"),
        ({"gateways": "10.0.0.1", "host": "192.0.2.1"}, "not loopback"),
        ({"gateways": "nowhere"}, "nowhere"),
        ({"gateways": ","}, "names nothing"),
        ({"gateway_secret": " ", "host": "192.0.2.1"}, "names nothing"),
        ({"gateway_secret": ",", "host": "192.0.2.1"}, "names nothing"),
        ({"gateway_names": ","}, "names nothing"),
        ({"signed_url_secret_key": "short"}, "signed_url_secret_key has 5 bytes"),
        ({"signed_url_key_file": "/nowhere"}, "signed_url_key_file /nowhere can't be read"),
        ({"require_confirmation": True}, "signed_url_key_file"),
    ],
)
def test_says_what_does_not_go_together(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        create_app(load(environment={}, overrides={"store": "memory://", **overrides}))
    assert SECRET not in str(caught.value)


def test_suggests_only_a_setting_of_a_similar_name() -> None:
    with pytest.raises(ConfigurationError, match=r"Unknown setting 'stroe'.* mean 'store'"):
        load(environment={"ZAQAR_LITE_STROE": "memory://"})
    with pytest.raises(ConfigurationError, match="Unknown setting 'nonsense'") as caught:
        load(environment={"ZAQAR_LITE_NONSENSE": "1"})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("content", [b"port = ", b"prot = 1", b"[store]\nx = 1", b"# \xe4"])
def test_says_what_is_wrong_in_a_file(tmp_path: Path, content: bytes) -> None:
    config = tmp_path / "zaqar.toml"
    config.write_bytes(content)
    with pytest.raises(ConfigurationError):
        load(environment={}, config=config)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_knows_a_loopback_address(host: str, loopback: bool) -> None:
    values: dict[str, Any] = {"host": host, "trust_headers": True}
    assert load(environment={}, overrides=values).is_loopback is loopback


def test_does_not_show_the_secret_key() -> None:
    settings = load(environment={"ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "hush" * 8})
    assert "hush" not in repr(settings)
    mail = {"smtp_url": f"smtp://me:{SECRET}@mail", "smtp_sender": "a@b.org"}
    assert SECRET not in repr(load(environment={}, overrides=mail))
    with pytest.raises(ConfigurationError) as caught:
        load(environment={"ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "hush"})
    assert "hush" not in str(caught.value)


NUMBERS = [
    name
    for name, field in Settings.model_fields.items()
    if field.annotation in (int, float) and name != "port"
]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_an_upper_bound_that_is_told(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environment={f"ZAQAR_LITE_{name.upper()}": "1000000000000"})
    assert name in str(caught.value)
    assert "less than or equal to" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("max_messages_per_page", 1_000),
        ("max_messages_per_claim_or_pop", 1_000),
        ("max_messages_post_size", 1_048_576),
    ],
)
def test_what_one_request_may_take_is_what_the_stores_can_carry(name: str, most: int) -> None:
    assert getattr(load(environment={}, overrides={name: most}), name) == most
    with pytest.raises(ConfigurationError, match=f"{name} .* {most}"):
        load(environment={}, overrides={name: most + 1})


def test_the_largest_limits_fit_together() -> None:
    largest = {
        name: next(m.le for m in Settings.model_fields[name].metadata if hasattr(m, "le"))
        for name in NUMBERS
    }
    assert load(environment={}, overrides=largest).max_message_ttl == largest["max_message_ttl"]
