"""Runs an artifact and prints how many bytes of its weights are private, and how many resident."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import graphc
from graphc import weights_file

with graphc.load(sys.argv[1], threads=1) as module:
    module(**module.example_inputs())
    # Reads every page through the same mapping, as a model that uses all of its weights would.
    path = Path(sys.argv[1]) / "weights.bin"
    mapped = np.memmap(path, np.uint8, "r")
    weights_file.Checksum().update(mapped[: mapped.size // 8 * 8])
    print("ran", flush=True)
    sys.stdin.readline()
    sums = {"Private_Dirty:": 0, "Anonymous:": 0, "Rss:": 0}
    counting = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            counting = line.endswith("weights.bin")
        elif counting and line.split()[0] in sums:
            sums[line.split()[0]] += int(line.split()[1]) * 1024
    print(sums["Private_Dirty:"] + sums["Anonymous:"], sums["Rss:"], flush=True)
    sys.stdin.readline()
