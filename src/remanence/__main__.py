"""`python -m remanence` is the command line."""

from remanence.cli.main import main

main()
