"""Starting workers, and watching them."""
