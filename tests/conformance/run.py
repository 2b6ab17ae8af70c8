"""ONNX's node cases through graphc: `python tests/conformance/run.py [--check | --update]`.

(nothing)        runs the cases and prints what does not pass, by reason
--check          also fails if that is not what results.json says
--update         writes results.json
--filter REGEX   only cases whose names match; --failing: only those listed in results.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import collect
from worker import Outcome, run

RESULTS = Path(__file__).resolve().parent / "results.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", help="a regular expression for names")
    parser.add_argument("--every", type=int, default=1, help="only each N-th case")
    parser.add_argument("--failing", action="store_true", help="only cases that did not pass")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--check", action="store_true", help="compare with results.json")
    parser.add_argument("--update", action="store_true", help="write results.json")
    options = parser.parse_args(arguments)
    listed = read()
    everything = collect()
    cases = [case for case in everything if re.search(options.filter, case.name)]
    cases = cases[:: max(options.every, 1)]
    if options.failing:
        cases = [case for case in cases if case.name in listed["failing"]]
    start = time.monotonic()
    outcomes = []
    for outcome in run(cases, options.jobs):
        outcomes.append(outcome)
        if sys.stderr.isatty():
            print(f"\r{len(outcomes)}/{len(cases)}", end="", file=sys.stderr)
    show(outcomes, time.monotonic() - start)
    if options.update:
        write(outcomes, listed, len(everything))
    return show_changes(outcomes, listed) if options.check else 0


def read() -> dict[str, dict[str, str]]:
    """The table: `failing` has a reason for each case, `fixed` the passing ones with settings."""
    if not RESULTS.exists():
        return {"failing": {}, "fixed": {}}
    table: dict[str, dict[str, str]] = json.loads(RESULTS.read_text())
    return table


def write(outcomes: Sequence[Outcome], listed: dict[str, dict[str, str]], count: int) -> None:
    """Merges what ran into the table."""
    failing, fixed = dict(listed["failing"]), dict(listed["fixed"])
    for outcome in outcomes:
        failing.pop(outcome.name, None)
        fixed.pop(outcome.name, None)
        if outcome.reason:
            failing[outcome.name] = outcome.reason
        elif outcome.fixed:
            fixed[outcome.name] = "inputs that set a shape, an axis or a form are compiled in"
    table = {
        "cases": count,
        "failing": dict(sorted(failing.items())),
        "fixed": dict(sorted(fixed.items())),
    }
    RESULTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")


def changes(outcomes: Sequence[Outcome], listed: dict[str, dict[str, str]]) -> list[str]:
    """Where the outcomes are not what the table says."""
    found = []
    for outcome in sorted(outcomes, key=lambda outcome: outcome.name):
        expected = listed["failing"].get(outcome.name)
        if outcome.reason and expected is None:
            found.append(f"{outcome.name} passed before: {outcome.reason}")
        elif not outcome.reason and expected is not None:
            found.append(f"{outcome.name} passes now: run.py --failing --update")
        elif not outcome.reason and outcome.fixed != (outcome.name in listed["fixed"]):
            found.append(f"{outcome.name}: settings are {'' if outcome.fixed else 'not '}fixed now")
    return found


def show(outcomes: Sequence[Outcome], seconds: float) -> None:
    failed = sorted((o for o in outcomes if o.reason), key=lambda o: (o.reason, o.name))
    for outcome in failed:
        print(f"{outcome.name}: {outcome.reason}")
    kinds = Counter(re.split(r"[:\s]", outcome.reason, maxsplit=1)[0] for outcome in failed)
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    fixed = sum(outcome.fixed and not outcome.reason for outcome in outcomes)
    passed = len(outcomes) - len(failed)
    print(f"{passed} of {len(outcomes)} pass ({fixed} with settings fixed) in {seconds:.0f} s")


def show_changes(outcomes: Sequence[Outcome], listed: dict[str, dict[str, str]]) -> int:
    found = changes(outcomes, listed)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
