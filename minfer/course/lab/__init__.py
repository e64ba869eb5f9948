"""The laboratory: what a graded test works with: small models, the oracle that knows their answers, recorded runs."""
