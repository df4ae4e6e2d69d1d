"""Heads on frozen backbones, and a weak adversary (Maciazek and Allison 2025)."""
