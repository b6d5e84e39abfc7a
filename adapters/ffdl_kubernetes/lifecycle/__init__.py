"""Creates, follows up and removes the objects of attempts."""
