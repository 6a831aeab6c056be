"""Which perdure this is."""

VERSION = "0.6.0"
