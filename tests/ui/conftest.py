"""The API's own fixture, on which the page is looked at."""

from tests.api.conftest import make_api

__all__ = ["make_api"]
