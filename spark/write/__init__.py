"""Writing rows of Spark to a store's log."""
