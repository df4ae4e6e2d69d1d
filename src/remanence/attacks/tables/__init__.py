"""The missing row of a table, out of what a fitted object holds: rows, values, means, equations and leaves."""
