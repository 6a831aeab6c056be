"""Which perdure this is."""

VERSION = "0.5.0"
