"""Stores on object storages: S3, Google Cloud Storage, Azure."""
