"""Shadow models: models like the attacked one whose training sets the attacker knows."""
