"""Lectures: two phases beside each other, by their code and by what they do, and a phase as one file."""
