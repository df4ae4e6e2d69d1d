"""Certified numerics behind the bounds.

schedule → cumulant → contour (an estimate), and quantise → law → lattice (a certificate) → bracket.
"""
