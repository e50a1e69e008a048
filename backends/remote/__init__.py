"""Stores that a server serves: a backend that asks it over HTTP, and what the two say to each other."""
