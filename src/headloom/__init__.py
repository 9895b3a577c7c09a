"""Transformers trained from YAML, for people who want to understand what they train and trust what they see."""
