"""What is said of a store's URI."""

import pytest

from zaqar_lite.domain.addresses import shown, without_secrets


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("memory://", "memory://"),
        ("embedded:zaqar-lite-data", "embedded:zaqar-lite-data"),
        ("embedded:///var/lib/zaqar", "embedded:///var/lib/zaqar"),
        (
            "redis://u:sesame@one:6379,two:6380/3?timeout=9",
            "redis://***@one:6379,two:6380/3?timeout=***",
        ),
        ("redis://:ses@me@host/0", "redis://***@host/0"),
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        ("rediss://:secret@[::1]:1/0?a=b&c", "rediss://***@[::1]:1/0?a=***&c=***"),
        ("rediss://[::1]:6379?ssl_ca_certs=/x", "rediss://[::1]:6379?ssl_ca_certs=***"),
        (
            "mongodb://u:sesame@host/db?authSource=sesame#sesame",
            "mongodb://***@host/db?authSource=***",
        ),
        ("swift+https:///?cloud=sesame", "swift+https:///?cloud=***"),
        ("embedded:///var/lib/q#secret", "embedded:///var/lib/q"),
        ("unix://u:sesame@/run/redis.sock", "unix://"),
        # What is wrong may be a password in the wrong place.
        ("redis://:ses/ame@host", "redis://"),
        ("redis://:ses?ame@host", "redis://"),
        ("redis://host/?password=a@sesame", "redis://"),
        ("redis://:sesame", "redis://"),
        ("redis://u:sesame", "redis://"),
        ("redis://u:sesame@", "redis://"),
        ("redis://se cret/x", "redis://"),
        ("swift:https://u:sesame@host/v3", "swift:https://***@host/v3"),
        ("redis:u:sesame@host", "redis:***"),
        ("redis:/u:sesame@host/0?a=b", "redis:***"),
        ("redis:u:ses?ame@host", "redis:***"),
        ("redis:///u:sesame@host", "redis:***"),
        ("sesame", "***"),
        ("", "***"),
    ],
)
def test_shows_no_credentials(uri: str, said: str) -> None:
    assert shown(uri) == said
    assert shown(said) == said


def test_takes_the_secrets_out_of_another_programs_words() -> None:
    uri = "redis://user:ses%40me@host:6379/0?token=abracadabra&lock_timeout=60"
    for words in (uri, "login ses@me failed", "login ses%40me", "bad abracadabra", "user:ses%40me"):
        told = without_secrets(f"host said: {words}", uri)
        assert told.startswith("host said: ")
        for secret in ("user", "ses%40me", "ses@me", "abracadabra"):
            assert secret not in told
    assert without_secrets("no secret here", "redis://host") == "no secret here"
