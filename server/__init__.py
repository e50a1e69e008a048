"""A store over HTTP, speaking the Durable Streams protocol.

This release does not contain it yet.
"""
