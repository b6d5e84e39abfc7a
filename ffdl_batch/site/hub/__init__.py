"""The hub: identifies remote callers, and passes their requests on to the daemon of each user."""
