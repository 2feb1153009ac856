"""The endpoints as pure functions: arguments -> `Call` (method, path, headers, body, reader).

No socket, no clock, no retry is in here, so the sync and the async client share all of it, and a
test needs no network.
"""
