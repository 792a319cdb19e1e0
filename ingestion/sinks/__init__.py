"""What keeps a stream's rows, and commits rows and note as one act: a folder a sink."""
