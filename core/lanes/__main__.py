"""`python -m lanes`."""

from lanes.cli import main

if __name__ == "__main__":
    main()
