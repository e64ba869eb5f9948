"""What every phase shares: the models, their files and tokenizers, sampling, sequences, the device."""
