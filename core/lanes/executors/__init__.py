"""Where processes run. An executor starts, watches and stops the processes of a lane."""
