"""`minfer pull`: fetch a model into the cache."""

from typing import Annotated

import typer

from minfer.core.hub import PULLABLE
from minfer.core.hub import pull as fetching


def pull(
    name: Annotated[str, typer.Argument(help=f"{PULLABLE}, or ORG/NAME of the Hugging Face hub.")],
) -> None:
    """Fetch a model into the cache, where its name stands for it from then on.

    The cache is the folder MINFER_HOME, by default minfer in the user's cache folder. A model that is there already is
    left as it is; a download that fails leaves nothing behind.
    """
    fetching.pull(name)
