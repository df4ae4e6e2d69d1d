"""`python -m remanence` is the command line."""

from remanence.cli import main

main()
