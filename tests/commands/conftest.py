"""Fixtures of the command line's tests."""

from tests.client.conftest import client, queue, server

__all__ = ["client", "queue", "server"]
