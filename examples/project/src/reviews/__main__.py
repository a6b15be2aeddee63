import argparse
from pathlib import Path

from reviews.report import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="reviews")
    parser.add_argument("--top", type=int, default=5, help="how many words")
    print(report(Path("data/reviews.csv"), parser.parse_args().top))


if __name__ == "__main__":
    main()
