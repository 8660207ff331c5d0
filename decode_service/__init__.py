"""The decode pod: owns a request from its submission to its last token."""
