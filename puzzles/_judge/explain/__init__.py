"""Explanations of wrong numbers, from facts of the run or by running variants of the answer."""
