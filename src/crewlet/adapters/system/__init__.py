"""The clock and the randomness of the machine this runs on."""
