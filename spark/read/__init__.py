"""Reading stores with Spark: planning, splits, views, replay."""
