"""See graphc.targets; imported as `graphc.targets` only."""

if __name__ != "graphc.targets":
    raise ImportError(
        "import graphc.targets, not targets: a second copy of the package would be loaded"
    )
