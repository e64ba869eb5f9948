"""Draw every figure, or those whose names are given."""

import sys

from scripts.lesson_figures.every import FIGURES, draw
from scripts.lesson_figures.style import FOLDER

FOLDER.mkdir(exist_ok=True)
for name in sys.argv[1:] or FIGURES:
    print(draw(name, FOLDER))
