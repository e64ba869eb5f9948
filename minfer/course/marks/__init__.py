"""Marks: what a test came to, what its author reads of it, what it is worth, and the report and table of them all."""
