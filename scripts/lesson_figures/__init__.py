"""Figures of the lessons: one function each, drawn from what tiny does, from formulas, or from a small file of data.

python -m scripts.lesson_figures                # all, into phases/figures
"""
