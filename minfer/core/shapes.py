RANDOM = "random:"
SHAPES = {}
