"""Files and Hub sets -> rows -> problems."""
