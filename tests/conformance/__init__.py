"""What ffdl_batch relies on, checked against one real release of Slurm: ``make conformance SUITE=bookworm``."""
