"""Studies of runs: arms with other branching rules at equal cost; executed counterfactuals of decisions, and estimators of credit."""
