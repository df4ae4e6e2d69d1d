"""The commands, one file each.

Imports everything; nothing imports it.
"""
