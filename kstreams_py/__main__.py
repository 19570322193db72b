"""`python -m kstreams_py` is the command `kstreams`."""

from kstreams_py.cli.main import main

if __name__ == "__main__":
    main()
