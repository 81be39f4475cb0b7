"""`python -m fedjax_admm`, the same as the command `fedjax-admm`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
