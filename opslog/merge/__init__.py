"""The rules: the order of commits, which one wins, and what an undo takes back. Pure."""
