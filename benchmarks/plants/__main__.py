"""Run the invented plants: ``python -m benchmarks.plants CASES``."""

from benchmarks.plants.invented import main

if __name__ == "__main__":
    main()
