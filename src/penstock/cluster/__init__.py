"""The metadata tree, the immutable cluster image, and the decisions about topics that change them."""
