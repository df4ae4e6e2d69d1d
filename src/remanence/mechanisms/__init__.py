"""M: from data to a release. Training of GLMs, networks and heads, and wrappers for anybody's function.

Imports data and scoring.
"""
