"""Problems, demonstrations, and the quick-start world."""
