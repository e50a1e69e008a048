"""The format on storage: names of files, lines of logs, manifests, snapshots, documents. Pure; docs/format.md
specifies it."""
