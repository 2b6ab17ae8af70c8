"""Converters of ONNX operators, one file for each family."""
