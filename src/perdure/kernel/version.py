"""Which perdure this is."""

VERSION = "0.4.0"
