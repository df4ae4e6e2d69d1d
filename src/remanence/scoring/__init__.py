"""When a reconstruction counts, and how often it did: errors, criteria, rates with intervals, ROC curves.

Imports data.
"""
