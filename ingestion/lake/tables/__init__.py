"""The sinks, one file each: what keeps a stream's rows, and commits rows and note as one act."""
