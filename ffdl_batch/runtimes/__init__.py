"""How a learner is started: pure builders of argv and environment, shared by all adapters. Nothing here does I/O."""
