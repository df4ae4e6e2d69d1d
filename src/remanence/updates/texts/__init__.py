"""Transformers that read token ids."""
