"""The command line: one small file per command. Nothing heavy is imported before a command needs it."""
