"""Lessons: what `phases/` holds and what is made for it: exercises, starters, mistakes, a student's work, exports."""
