"""What every door (MCP, HTTP, the command line) can do with a store, written once."""
