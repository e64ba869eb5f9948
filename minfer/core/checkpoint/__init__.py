"""Where a model's weights are: stored in files, whose headers are read first, or drawn at random in a known shape."""

from minfer.core.checkpoint.checkpoint import Checkpoint, LoadableModel
from minfer.core.checkpoint.tensor_source import StoredTensor, TensorSource

__all__ = ["Checkpoint", "LoadableModel", "StoredTensor", "TensorSource"]
