"""Zaqar Lite: a message queue service that speaks OpenStack Zaqar's v2 API."""

__version__ = "0.3.0"
