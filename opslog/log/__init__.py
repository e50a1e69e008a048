"""Logs of operations: reading them, writing one, sealing them."""
