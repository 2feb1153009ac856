"""Calls as values: a function here takes arguments and returns a `Call`, and does no I/O.

A `Call` is a request and the function that reads its answer. The sync and the async client share
all of it, and tests need no network. Messages and claims have a function for each call, because
several parts of the SDK make it. Most others have none: a method makes its own call by `resources`.
"""
