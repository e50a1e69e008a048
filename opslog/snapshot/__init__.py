"""Manifests and sorted runs of records on storage: finding, reading and writing them."""
