"""The proof as commands use it: certificates, and statements that Spark evaluates."""
