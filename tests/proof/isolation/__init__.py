"""`make proof-isolation`: what a learner can reach, tried from inside learners, beside a control for each attempt."""
