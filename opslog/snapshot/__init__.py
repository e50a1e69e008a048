"""Manifests and sorted runs of records on storage: how they are found, read and written."""
