"""From the device into bounded memory."""
