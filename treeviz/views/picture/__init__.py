"""Pictures: .svg and .png."""
