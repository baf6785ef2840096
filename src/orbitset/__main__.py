"""python -m orbitset"""

from orbitset.cli import main

main()
