"""The protocol over HTTP: requests, answers, followers, limits."""
