"""Certified numerics behind the bounds.

schedule → cumulant → quantise → law → lattice → bracket.
"""
