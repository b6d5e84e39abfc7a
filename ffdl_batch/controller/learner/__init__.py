"""The processes of one learner: environment, start, signals, end, and what a killed controller left of them."""
