"""A store for language-model agents, by the Model Context Protocol: `opslog mcp`. Needs the extra ``mcp``."""
