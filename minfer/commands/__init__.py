"""The commands of `minfer`, one file each, and what they share."""
