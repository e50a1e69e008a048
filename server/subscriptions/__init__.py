"""Subscriptions: who is told of new messages, by a webhook or by waiting, and how that is retried."""
