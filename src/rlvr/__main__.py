"""`python -m rlvr` is the command `rlvr`."""

from rlvr.cli.main import program

if __name__ == "__main__":
    program()
