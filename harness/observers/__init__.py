"""One file per thing that is recorded from outside the server and the load."""
