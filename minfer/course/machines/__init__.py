"""Machines that are not there: simulated cards, clocks and ranks on which tests see what hardware would hide."""
