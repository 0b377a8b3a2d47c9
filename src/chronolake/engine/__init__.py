"""The engine: a process that keeps Spark running between commands.

A command that needs Spark spends most of its time on the start of Java. The engine starts Java
once, and runs each command in a fork of itself: a process of its own, with the directory, the
environment and the terminal of the command's caller, but with all modules imported and with Spark
running. So output, progress, exit codes and Ctrl-C are those of the command, and a command that
fails or is killed affects no other.

- `client` sends a command to an engine; it imports nothing else of Chronolake, because it runs
  before the command's own modules are loaded.
- `messages` is the format of the messages between them.
- `background` starts an engine after a command that had to start Spark itself.
- `server` is the engine's own process: it starts Java, forks, and reports exit codes.
- `command` runs a command in a fork.
- `java` is the engine's JVM.
- `tasks` are those of `chronolake up`, and `health` is its HTTP server.
"""
