"""Jobs: what is asked for, and what carries it out on rows, tables, series and shards."""
