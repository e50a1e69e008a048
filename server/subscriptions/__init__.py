"""Subscriptions: notifying workers of new messages, by a webhook or a wake stream, with retries."""
