"""Networks as modules: free variables, an activation and a solver put together; ODEs are in `dynamics`."""
