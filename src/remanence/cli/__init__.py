"""The commands that belong to no door.

Imports everything; nothing imports it.
"""
