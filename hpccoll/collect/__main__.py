"""``python -m hpccoll.collect RUN_DIR``: see the package."""

from hpccoll.collect.program import main
from hpccoll.output import run_alone

if __name__ == "__main__":
    run_alone(main)
