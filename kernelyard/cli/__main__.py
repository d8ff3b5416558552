"""`python -m kernelyard.cli`: the command line."""

from kernelyard.cli import main

if __name__ == "__main__":
    main()
