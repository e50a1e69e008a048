"""`python -m opslog` is `opslog`."""

from opslog.cli import main

main()
