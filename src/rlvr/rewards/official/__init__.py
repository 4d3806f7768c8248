"""Official scorers, reproduced exactly; lenient variants have other names and modules."""
