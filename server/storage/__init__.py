"""Where streams are kept: in LMDB files of a directory, or in memory."""
