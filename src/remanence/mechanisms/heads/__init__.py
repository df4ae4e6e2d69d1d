"""Transfer-learned heads, trained in the span of their records."""
