"""The course: what grades an engine. Importing this package imports neither torch nor pytest.

plugin     --engine and --seed, the fixtures `engine_cls` and `lab`, failure messages of one screen
loading    from FILE.py:Class to a class, refusing what would grade the wrong code
lab        tiny odd-sized models in float64, scripted models, recorded runs, comparisons
oracle     what a model must answer, in numpy, sharing nothing with minfer.core
"""
