"""Studies of recorded runs: executed counterfactuals of decisions, and what estimators of credit make of them."""
