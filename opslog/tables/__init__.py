"""Documents as tables: Arrow, and SQL by DuckDB. Needs the extra ``query``."""
