"""Hardware instructions as LLVM text, each beside a plain reference function."""
