"""Every audit is a game: leave-one-out, membership, heads, captured gradients, recorded runs, attributes.

Imports everything above and the game itself.
"""
