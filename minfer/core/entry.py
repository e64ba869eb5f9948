"""Entry: a function as the whole of another process: `python -m minfer.core.entry MODULE FILE FUNCTION`.

A module that Python does not find under its name there, since it is a student's file say, is made from the file under
the same name: so what was pickled here finds its classes there.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def command(function: Callable[[], Any]) -> list[str]:
    """What another process runs in order to call a function of a module. It needs to find minfer."""
    module, file, name = place_of(function)
    return [sys.executable, "-m", "minfer.core.entry", module, file, name]


def place_of(one: Any) -> tuple[str, str, str]:
    """The module of a class or function, the module's file, and the name there."""
    return one.__module__, str(getattr(sys.modules[one.__module__], "__file__", "")), one.__name__


def can_be_found(one: Any) -> bool:
    """Whether another process can find a class or function by name: in a module with a file, not the main script."""
    module = sys.modules.get(one.__module__)
    in_file = str(getattr(module, "__file__", "")).endswith(".py") and one.__module__ != "__main__"
    return in_file and getattr(module, one.__name__, None) is one


def find(module: str, file: str, name: str) -> Any:
    """The class or function at a place."""
    return getattr(_imported(module, file), name)


def _imported(name: str, file: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    try:
        known = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        known = None
    if known is not None and known.origin == file:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


if __name__ == "__main__":
    sys.exit(find(*sys.argv[1:4])())
