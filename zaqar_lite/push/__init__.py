"""What sends messages to subscribers: webhooks and mail, and the guard that says where to."""
