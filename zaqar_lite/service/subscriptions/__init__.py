"""Subscriptions: who gets the messages of a queue."""
