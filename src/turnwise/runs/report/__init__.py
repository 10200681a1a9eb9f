"""`report.html`: a run on one self-contained page."""
