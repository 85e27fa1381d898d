"""Figures about this machine's Crewlet, each beside the raw work that it cannot do without.

`python -m benchmarks NAME... --json` runs some (or all) and prints one merged JSON object as its last line; everything
else goes to stderr. Ratios are taken in one run, interleaved, as medians: machines are noisy. No test reads them.
"""
