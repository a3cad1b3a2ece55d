"""Networks as plain modules with a fixed number of operations and a proved error, as ONNX files, and as pages."""
