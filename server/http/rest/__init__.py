"""Stores over HTTP: documents, transactions, the past and maintenance below ``/v1/store/NAME``."""
