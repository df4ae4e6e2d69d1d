"""What the adversary believes and knows before the release. Never the target.

Imports data, scoring and mechanisms.
"""
