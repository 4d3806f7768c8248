"""What the README and docs/*.md say, read as data: commands, code, links."""
