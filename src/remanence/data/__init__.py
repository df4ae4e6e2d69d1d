"""What is trained on and what is seen: records and releases.

Imports exceptions and scale.
"""
