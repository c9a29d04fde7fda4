"""`python -m buquet`: the command line."""

from buquet.cli import main

main(prog_name="buquet")
