"""`python -m minfer` is the command `minfer`."""

import sys

from minfer.cli import main

sys.exit(main())
