"""Ladders of puzzles, found by Pallas Puzzles through the entry points in pyproject.toml."""
