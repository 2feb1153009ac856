"""Deliveries: every message of a queue to each of its subscribers, at least once."""
