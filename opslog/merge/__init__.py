"""The rules: which commit comes after which, which one wins, what an undo takes back. Pure."""
