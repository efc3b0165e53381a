"""How long `import treeviz` takes, as a multiple of `import jax`: python tests/benchmarks/import_time.py

Both run in fresh processes, in turn, so that a machine that slows down slows both. CPU time of the process, its threads
and the interpreter's own start included; the median of all rounds. The goal is a ratio below 1.15.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys


def cpu_seconds(statement: str) -> float:
    """What a fresh interpreter spends on `statement`, user and system time."""
    before = os.times()
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds

    statements = ("import jax", "import treeviz")
    for statement in statements:  # bytecode is compiled and files are in memory before the first round
        cpu_seconds(statement)
    spent = {statement: [] for statement in statements}
    for n in range(rounds):
        for statement in statements[:: 1 if n % 2 else -1]:
            spent[statement].append(cpu_seconds(statement))

    medians = {statement: statistics.median(seconds) for statement, seconds in spent.items()}
    for statement, seconds in spent.items():
        print(f"{statement:16}{1000 * medians[statement]:6.0f} ms CPU  (min {1000 * min(seconds):.0f}, n={rounds})")
    ratio = medians["import treeviz"] / medians["import jax"]
    of_minima = min(spent["import treeviz"]) / min(spent["import jax"])
    print(f"ratio of medians {ratio:.3f}, of minima {of_minima:.3f} (goal: below 1.15)")


if __name__ == "__main__":
    main()
