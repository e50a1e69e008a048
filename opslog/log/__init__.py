"""Logs of operations: reading them, writing one, fencing and sealing them."""
