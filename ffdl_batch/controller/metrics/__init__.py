"""What learners say of themselves and what they use: collectors, and samples."""
