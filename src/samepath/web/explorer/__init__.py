"""The page that shows a curation and takes corrections."""
