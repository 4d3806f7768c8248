"""`python -m rlvr` is the command `rlvr`."""

from rlvr.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
