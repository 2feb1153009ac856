"""Schedules: messages that are posted by the clock."""
