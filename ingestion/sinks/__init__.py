"""The stores of a stream's rows, which commit rows and note in one step: a folder for each."""
