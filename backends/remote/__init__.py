"""Stores that a server serves: a backend that sends it requests over HTTP, and the protocol between the two."""
