"""The command `lben`: arguments are read and results printed here, and nothing is computed."""
