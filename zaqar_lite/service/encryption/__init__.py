"""Encrypted queues: bodies are sealed before they are stored and opened on every way out."""
