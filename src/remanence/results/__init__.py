"""What an audit found: evidence, caveats, the verdict, and how it is stored.

Imports adversary, attacks' catalogue and bounds.
"""
