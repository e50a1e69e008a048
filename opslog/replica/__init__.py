"""An open store: what it has in memory, how it follows what others write, and what it commits."""
