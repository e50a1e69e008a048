"""Durable Streams: every decision of the protocol, and its contract with the storage. Pure."""
