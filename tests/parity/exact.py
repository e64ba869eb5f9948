"""`transformers` in float64 throughout: it computes norms, softmax and rotary tables in float32, whatever the weights.

Every float32 that its code names becomes float64 inside `exact()`, so that a wrong formula of ours cannot hide in a
tolerance, and nothing of theirs is written down a second time.
"""

import torch
from torch.overrides import TorchFunctionMode

_FLOAT = torch.Tensor.float


def _widened(value):
    return torch.float64 if value is torch.float32 else value


class exact(TorchFunctionMode):
    """In this context `dtype=torch.float32`, `.to(torch.float32)` and `.float()` give float64."""

    def __enter__(self):
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(self._default)
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is _FLOAT:
            return args[0].double()
        kwargs = {key: _widened(value) for key, value in (kwargs or {}).items()}
        return function(*(_widened(value) for value in args), **kwargs)
