"""Reports, their files and pages, and other formats."""
