"""The storages of streams: LMDB files in a directory, or memory."""
