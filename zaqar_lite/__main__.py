"""`python -m zaqar_lite` is `zaqar-lite`."""

import sys

from zaqar_lite.cli import main

if __name__ == "__main__":
    sys.exit(main())
