"""Grading: from what a user names to a class, its tests run by the pytest plugin, here or in processes of their own."""
