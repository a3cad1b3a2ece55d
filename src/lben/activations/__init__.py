"""sigma: slopes, proximal operators, convex potentials, Jacobians, and sets to project onto; W is not known here."""
