"""The MCP server, `opslog mcp`: a store for language-model agents. Needs the extra ``mcp``."""
