"""Official scorers, oddities included; whatever is lenient has another name and lives elsewhere."""
