"""One process's copy of the documents: what it holds, and how it follows what others write."""
