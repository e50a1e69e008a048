"""Logs of operations: reading them, being the writer of one, sealing them."""
