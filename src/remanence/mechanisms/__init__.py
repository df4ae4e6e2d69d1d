"""M: from data to a release."""
