"""See graphc.tuning_logs; imported as `graphc.tuning_logs` only."""

if __name__ != "graphc.tuning_logs":
    raise ImportError(
        "import graphc.tuning_logs, not tuning_logs: a second copy of the package would be loaded"
    )
