"""Optional packages: imported at use, never at `import minfer`."""

import importlib
from types import ModuleType

from minfer.core.errors import MissingExtra


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or raise `MissingExtra` that names the extra which installs it.

    `purpose` completes the sentence "<module> is needed for …".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        message = f"{package} is needed for {purpose}, but is not installed: pip install 'minfer[{extra}]'"
        raise MissingExtra(message) from error
