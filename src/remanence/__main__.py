"""`python -m remanence` is the command line."""

from remanence.cli.main import main

if __name__ == "__main__":  # processes that compute for `explore` load this file, too
    main()
