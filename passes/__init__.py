"""See graphc.passes; imported as `graphc.passes` only."""

if __name__ != "graphc.passes":
    raise ImportError(
        "import graphc.passes, not passes: a second copy of the package would be loaded"
    )
