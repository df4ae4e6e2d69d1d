"""The papers' figures and tables, run again: one function each, from settings to rows beside the paper's values."""
