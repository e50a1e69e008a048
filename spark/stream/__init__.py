"""Following a store with Structured Streaming."""
