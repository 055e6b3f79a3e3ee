"""``python -m hpccoll NAME ...``: the console script ``hpccoll`` where it is not on the PATH."""

from hpccoll.cli import main

if __name__ == "__main__":
    main()
