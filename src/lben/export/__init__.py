"""Networks as plain modules with a fixed number of operations and a proved error, and as ONNX files."""
