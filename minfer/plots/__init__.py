"""Pictures of what an engine did: in the terminal as text, and as PNG or SVG with the extra `plots`."""
