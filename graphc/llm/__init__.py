"""Language models: text in, text out over a compiled step and its paged cache; no TVM needed."""
