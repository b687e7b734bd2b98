"""``python -m understudy``: the command line, for launchers that start modules (``torchrun -m understudy``)."""

from understudy.cli.main import main

if __name__ == "__main__":
    main()
