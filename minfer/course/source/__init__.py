"""Reading source without running it: what a module defines, where a name comes from, what needs what.

module     Module: a file's statements, with their comments, and its imports
names      which names of the module a piece of code means
library    Library: all modules of minfer's phases; where a name is defined
imports    imports written as the project's style has them
lineage    Lineage: a phase's Engine and those that it inherits from; the members of each
gather     everything of the phases that some code needs, in an order that runs
outline    what a student's file, or a notebook, says about itself
"""
