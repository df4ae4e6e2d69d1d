"""The results of an audit: evidence, caveats, the verdict, and storage."""
