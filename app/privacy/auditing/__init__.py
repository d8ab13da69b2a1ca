"""Lower bounds on epsilon, from canaries of one run and from the rates of attacks."""
