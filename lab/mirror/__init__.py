"""The vendors' apt repositories as the lab needs them: real components, one signing key."""
