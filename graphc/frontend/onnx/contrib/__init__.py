"""Converters for the com.microsoft operators that ONNX Runtime's exporters and optimiser write."""
