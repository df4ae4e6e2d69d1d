"""How work runs and what it leaves behind: units, executors, run folders, files, progress.

Knows nothing of games.
"""
