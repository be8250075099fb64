"""The page that shows runs, studies and reports."""
