"""``python -m hpccoll.collect RUN_DIR``: see the package."""

import sys

from hpccoll.collect.program import main

if __name__ == "__main__":
    sys.exit(main())
