"""Print what ``make quality`` measured: for each undone fix, examples and seconds to find and to shrink."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def main(path: Path) -> None:
    """Median and worst over the seeds, a line per revert."""
    results: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        result = json.loads(line)
        results[result["revert"]].append(result)
    columns = ("examples_to_find", "seconds_to_find", "executions", "seconds")
    sys.stdout.write(
        f"{'revert':<14}{'seeds':>6}" + "".join(f"{column + ' median/worst':>32}" for column in columns) + "\n"
    )
    for revert, rows in results.items():
        cells = []
        for column in columns:
            values = [row[column] for row in rows]
            cells.append(f"{statistics.median(values):g} / {max(values):g}")
        sys.stdout.write(f"{revert:<14}{len(rows):>6}" + "".join(f"{cell:>32}" for cell in cells) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
