"""Whether speculation changed a text, or took other steps than its models give."""
