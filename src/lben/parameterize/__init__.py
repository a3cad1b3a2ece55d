"""Free variables to weights and back: the only room that knows how W is made; it solves and proves nothing."""
