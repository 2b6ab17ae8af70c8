"""See graphc.codegen; imported as `graphc.codegen` only."""

if __name__ != "graphc.codegen":
    raise ImportError(
        "import graphc.codegen, not codegen: a second copy of the package would be loaded"
    )
