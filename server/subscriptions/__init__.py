"""Subscriptions: who is notified of new messages, by a webhook or by waiting, and how that is retried."""
