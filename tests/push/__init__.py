"""Delivery to webhooks."""
