"""Queries: the syntax of conditions and orders, what they mean, and the indexes that answer them quickly. Pure."""
