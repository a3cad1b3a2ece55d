"""Networks that live in time: trajectories of the neural ODE; what is proved of them is in `certify`."""
