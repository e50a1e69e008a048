"""The doors' common floor: what every door (MCP, HTTP, the command line) can do with a store, stated once."""
