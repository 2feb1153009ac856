"""Quotas and rates: how much a project may have, and how fast it may ask."""
