"""Models that somebody fitted on a table: what they minimise, what they hold, and whether they belong to the table."""
