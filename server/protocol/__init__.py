"""Durable Streams: every decision of the protocol, and what it needs of a storage. Pure."""
