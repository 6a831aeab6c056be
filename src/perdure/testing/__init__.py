"""For tests of perdure and of what is built on it: servers, clocks, faults, the contract suite."""
