"""The controller in a pod: what starts head or node there, says what they write, and stands in for the learner."""
